"""Child sessions: what they are called, what they are told, and what is said of how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from attrs import evolve

from flightlog.core.inbox import accepted, keyed_id, wakes
from flightlog.core.lending import Settlement, settlement, unknown
from flightlog.core.limits import CHILD_GOES_ON_MAX, SESSION_NAME_MAX_CHARS, Limits
from flightlog.core.repair import SESSION_CLOSED
from flightlog.core.spill import excerpt
from flightlog.core.state import State
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Message,
    SubagentSpawned,
    TurnEnd,
    UserMessage,
)
from flightlog_hookspecs.subagents import ChildState, Subagent

GO_ON: Final = "You were interrupted. Go on with your task."
"""What a child in the background is told when it is taken up and its turn was cut off."""


def child_name(parent: str, subagent: str, invocation_id: str) -> str:
    """The name of the session that a call starts: the same call, the same child."""
    tail = f"/{subagent}-{sha256(invocation_id.encode()).hexdigest()[:12]}"
    return parent[: SESSION_NAME_MAX_CHARS - len(tail)] + tail


def objection(state: State, subagent: Subagent, limits: Limits, invocation_id: str) -> str:
    """Why the call may not give a child a task now, "" if it may. Asked as that is logged: no two take one place."""
    if state.depth >= limits.subagent_depth:
        return f"children may be {limits.subagent_depth} levels deep at most. Do it yourself."
    if invocation_id in state.assigned:
        return "a call starts one child at most."
    alike = sum(state.children[name].subagent == subagent.name for name in state.unsettled)
    if len(state.unsettled) >= limits.subagents_at_once:
        busy = f"{len(state.unsettled)} children"
    elif subagent.at_once is not None and alike >= subagent.at_once:
        busy = f"{alike} of its kind"
    else:
        return ""
    return (
        f"{busy} are at work in this session, and no more may be at once. Wait until one is at rest, or call one off."
    )


def states_of(state: State, subagent: str) -> tuple[ChildState, ...]:
    """How the background children of one kind stand, the first that was started first."""
    return tuple(
        ChildState(child=name, task=task.task, working=name in state.unsettled)
        for name, task in state.children.items()
        if task.background and task.subagent == subagent
    )


def goes_on_as(child: State, invocation_id: str) -> str | None:
    """The key under which a child is told to go on; None when its turn was not cut off, or too often."""
    end = child.last_end
    if end is None or child.turn_open or wakes(child):
        return None
    if end.reason != "interrupted" and (end.reason, end.cause) != ("aborted", SESSION_CLOSED):
        return None
    keys = [f"{invocation_id} goes on {number}" for number in range(1, CHILD_GOES_ON_MAX + 1)]
    return next((key for key in keys if keyed_id(key) not in child.accepted), None)


def last_words(messages: Sequence[Message], since: str) -> str:
    """The last answer with words in it behind the message with id `since`, "" for none."""
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and message.text.strip():
            return message.text
        if isinstance(message, UserMessage) and message.message_id == since:
            break
    return ""


def ended(child: State, cause: str) -> TurnEnd:
    """How the child's last turn ended; that its task was ended because of `cause`, if it had not come to rest."""
    end = child.last_end or TurnEnd(reason="aborted", cause="its task was withdrawn")
    at_rest = end.reason not in ("interrupted", "aborted") and not (wakes(child) or child.unsettled)
    return TurnEnd(reason="aborted", cause=cause) if cause and not at_rest else end


def outcome(task: SubagentSpawned, end: TurnEnd, words: str, max_chars: int, child: State | None) -> Settlement:
    """What came of `task` when the last turn of `child` ended so; None is one whose log cannot be read."""
    if end.reason == "completed":
        result = words or "(It ended without words.)"
    else:
        why = ": ".join(filter(None, (end.reason, end.cause, end.code, end.message)))
        result = f"The subagent {task.subagent!r} did not finish ({why}). Its session is {task.child!r}."
        result += f"\nIts last words: {words}" if words else ""
    words = excerpt(result, max_chars, f"session {task.child!r}")
    return unknown(task, end.reason, words) if child is None else settlement(task, end.reason, words, child)


def settling(state: State, settlement: Settlement) -> tuple[Event, ...]:
    """The events that settle a task in the parent's log; none when it was settled before.

    What came of one in the background is a message that cuts into the running turn, or brings one about.
    """
    settled = settlement.settled
    task = state.children[settled.child]
    if settled.child not in state.unsettled or task.invocation_id != settled.invocation_id:
        return ()
    if not task.background:
        return settlement.events
    content = text_blocks(f"[{task.subagent} {settled.child!r}: {settled.reason}]\n{settled.result}")
    message = accepted(state, "steer", keyed_id(f"{settled.invocation_id} settled"), content)
    return *settlement.events, evolve(message, source="subagent")
