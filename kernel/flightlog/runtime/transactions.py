"""Transactional tools: the body in its transaction, and what its database says of a call that was cut off."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from flightlog.core.repair import UNKNOWN, Known
from flightlog.core.saying import said
from flightlog.core.state import State
from flightlog.runtime.clock import Clock
from flightlog.runtime.plugin_call import boxed
from flightlog.runtime.tool_output import Rendered, Unusable, failed
from flightlog.store.codec import Undecodable
from flightlog.store.done_result import DoneResult, decode_done, encode_done
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_hookspecs.events import ToldBy, ToolCall
from flightlog_hookspecs.tools import Done, NotDone, Tool, Unknown

if TYPE_CHECKING:
    from flightlog.store.foreign import Transaction

UNDONE: Final = "Its transaction was rolled back: nothing happened."
REUSED: Final = (
    "Not run: {} knows of a call with this invocation id, and this log does not. The log is an older copy of itself, "
    "or the session goes on in two places. Nothing happened."
)
_ANSWERS_MAX_S: Final = 60.0
"""A database that does not answer for so long is left; the call's outcome is unknown then."""


def transaction_of(path: str, invocation_id: str, log: str) -> Transaction:
    """The transaction of a call in the database at `path`; `log` is the kernel's own file."""
    from flightlog.store.foreign import Transaction  # sqlite3 is loaded by those who use it

    return Transaction(path, invocation_id, log)


def database_of(tool: Tool) -> str:
    """Where the tool's calls take effect, as it stands in the log; "" unless it is transactional."""
    return os.path.realpath(tool.database) if tool.database else ""


async def run_transaction(
    transaction: Transaction,
    body: Callable[[], object],
    render: Callable[[object], Rendered],
    clock: Clock,
    threads: trio.CapacityLimiter,
    *,
    again: bool = False,
) -> Rendered:
    """Run `body` in a thread, in its transaction: the end it came to or, if it is started `again`, had come to.

    Raises what the body raises; then, and when this is cancelled and `after_cut` says so, nothing happened.
    """

    def work() -> Rendered:
        try:
            if (before := transaction.begin()) is not None:
                if not again:
                    raise ToolError(REUSED.format(transaction.path))
                return _end_of(before.result)
            value = _value_of(body)
            if inspect.isawaitable(value):
                raise UsageError("a transactional body is a sync function, and this one returned an awaitable")
            end: Rendered = trio.from_thread.run_sync(render, value)
            result = DoneResult(outcome=end.outcome, content=end.content, spill=end.spill, facts=end.facts)
            transaction.commit(encode_done(result, end.blob), clock.now_us())
        except Unusable as error:
            raise ToolError(f"The call ran, but {error} {UNDONE}") from None
        finally:
            transaction.close()
        return end

    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=threads)


def _value_of(body: Callable[[], object]) -> object:
    from flightlog.store.foreign import DatabaseFault

    try:
        return boxed(body)[0]
    except (DatabaseFault, OutcomeUnknown):
        raise
    except ToolError as error:
        raise ToolError(f"{said(error)} {UNDONE}") from error


async def after_cut(transaction: Transaction) -> Rendered | None:
    """How a call that was cut off ended: its end when it was committed all the same, None when it is undone.

    Raises `OutcomeUnknown` when its commit does not come to an end.
    """
    with trio.CancelScope(shield=True):
        known = await trio.to_thread.run_sync(transaction.cut_off, limiter=trio.CapacityLimiter(1))
    if transaction.done is not None:
        return _end_of(transaction.done.result)
    if not known:
        raise OutcomeUnknown("Its commit did not come to an end.")
    return None


def _end_of(result: str | None) -> Rendered:
    if result is None:
        raise ToolError(f"An earlier owner of the session has given this call up. {UNDONE}")
    try:
        kept, blob = decode_done(result)
    except Undecodable as error:  # it is done, and nobody knows how
        raise OutcomeUnknown(f"Its row in flightlog_done cannot be read: {error.detail}.") from error
    return Rendered(outcome=kept.outcome, content=kept.content, spill=kept.spill, facts=kept.facts, blob=blob)


async def database_says(started: ToolCall, log: str, clock: Clock, *, final: bool) -> Done | NotDone | Unknown:
    """What the database of a transactional call that was cut off says of it; the output is a `Rendered`.

    When `final`, a call that it says is not done is given up there: who still runs it cannot commit any more.
    """
    ask = partial(_asked, started.database, started.invocation_id, log, clock.now_us() if final else None)
    with trio.move_on_after(_ANSWERS_MAX_S):
        return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    return Unknown()


def _asked(path: str, invocation_id: str, log: str, give_up_us: int | None) -> Done | NotDone | Unknown:
    from flightlog.store.foreign import DatabaseFault, given_up, row_of

    try:
        row = row_of(path, invocation_id, log) if give_up_us is None else given_up(path, invocation_id, log, give_up_us)
        return NotDone() if row is None or row.result is None else Done(_end_of(row.result))
    except (DatabaseFault, OutcomeUnknown):
        return Unknown()


async def made_final(started: ToolCall, end: Rendered, log: str, clock: Clock) -> tuple[Rendered, ToldBy]:
    """The `end` of a call that was started before, has no effect by now, and is not to have any.

    If the earlier start has taken effect meanwhile, how that ended.
    """
    match await database_says(started, log, clock, final=True):
        case Done(output=Rendered() as done):
            return done, "done_row"
        case NotDone():
            return end, ""
        case _:
            return failed(UNKNOWN, "unknown"), ""


async def known_ends(state: State, log: str, clock: Clock) -> dict[int, Known]:
    """How the open transactional calls have ended, by position, for good; those nobody can say it of are left out."""
    found = {}
    for call in state.step.unanswered if state.step else ():
        if call.started is not None and call.started.effect == "transactional":
            match await database_says(call.started, log, clock, final=True):
                case Done(output=Rendered() as end):
                    found[call.position] = Known(
                        outcome=end.outcome,
                        content=end.content,
                        spill=end.spill,
                        facts=end.facts,
                        blob=end.blob,
                        told_by="done_row",
                    )
                case NotDone():
                    found[call.position] = Known(outcome="aborted", told_by="done_row")
    return found
