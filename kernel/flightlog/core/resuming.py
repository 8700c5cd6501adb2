"""What becomes of a call that was cut off while it ran, when its turn goes on. The table of verdicts.

| the effect it started with  | its tool now             | a person     | then                       |
|-----------------------------|--------------------------|--------------|----------------------------|
| read, idempotent            | read, idempotent         |              | Repeat                     |
| read, idempotent            | anything else, gone      |              | Forget: it may be repeated |
| write, external             |                          | was asked    | AskPerson: for the answer  |
| write, external             | has a reconciler         |              | AskTool                    |
| write, external             | has none, cannot tell    | may be asked | AskPerson                  |
| write, external             | has none, cannot tell    |              | Forget: it is unknown      |
| transactional               |                          | was asked    | AskPerson: for the answer  |
| transactional               |                          |              | AskDatabase                |

What a tool or a database cannot tell, a person is asked for, if there is one.

A tool cannot tell that a call has not taken effect while an owner that the session was taken from may still run it.
A tool is gone when there is none of that name any more, or when it refuses the call's arguments.
"""

from __future__ import annotations

from attrs import frozen

from flightlog.core.state import Call
from flightlog_hookspecs.tools import REPEATABLE, Tool


@frozen
class Repeat:
    """Run it again: repeating it does no harm."""


@frozen
class AskTool:
    """Ask the tool whether it has taken effect."""


@frozen
class AskDatabase:
    """Ask the database that it was started in."""


@frozen
class AskPerson:
    """Ask a person whether it has taken effect, unless that was done, and go by the answer."""


@frozen
class Forget:
    """Nobody can tell: say so to the model, and leave it at that."""


Verdict = Repeat | AskTool | AskDatabase | AskPerson | Forget


def verdict_on(call: Call, tool: Tool | None, *, approver: bool) -> Verdict:
    """What is to be done about `call`, whose tool is `tool` now, None for one that is gone."""
    assert call.started is not None, "only a started call can be cut off"
    if call.asked_seq is not None:
        return AskPerson()
    if call.started.effect in REPEATABLE:
        return Repeat() if tool is not None and tool.effect in REPEATABLE else Forget()
    if call.started.effect == "transactional":
        return AskDatabase()
    if tool is not None and tool.reconcile is not None:
        return AskTool()
    return when_untold(approver=approver)


def when_untold(*, approver: bool) -> Verdict:
    """What is to be done about a call when its tool or its database cannot tell."""
    return AskPerson() if approver else Forget()
