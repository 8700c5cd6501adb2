"""The inbox: two queues of messages that wait for a turn, and the splices that change them.

| how      | slot      | wakes | meaning                                                              |
|----------|-----------|-------|----------------------------------------------------------------------|
| followup | next_turn | yes   | one a turn                                                           |
| steer    | next_step | yes   | enters the running turn's next step and forces one; else its own turn |
| inject   | next_step | no    | enters whatever step comes next, and never brings one about          |

Every function takes the state that its splices will follow. Messages join at the end of a slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal

from flightlog.core.state import State
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import InboxSplice, Slot

Way = Literal["followup", "steer", "inject"]

WAYS: Final[Mapping[Way, tuple[Slot, bool]]] = MappingProxyType(
    {"followup": ("next_turn", True), "steer": ("next_step", True), "inject": ("next_step", False)}
)
"""The ways into the inbox: the slot a message joins, and whether it wakes the session."""

_SLOTS: Final[tuple[Slot, ...]] = ("next_step", "next_turn")


def wakes(state: State) -> bool:
    """Whether a message waits for which a turn is opened."""
    return any(pending.wakes for slot in _SLOTS for pending in state.slot(slot))


def keyed_id(key: str) -> str:
    """The id of the message that is sent under idempotency key `key`: the same one whoever sends it, and when."""
    return sha256(f"message key {key}".encode()).hexdigest()[:32]


def accepted(state: State, way: Way, message_id: str, content: tuple[Block, ...]) -> InboxSplice:
    """The message joins the end of its slot."""
    slot, waking = WAYS[way]
    return InboxSplice(
        slot=slot,
        start=len(state.slot(slot)),
        message_id=message_id,
        cause="accepted",
        content=content,
        wakes=waking,
    )


def is_repeat(splice: InboxSplice, earlier: InboxSplice | None) -> bool:
    """Whether `splice` would accept what `earlier` did under the same key; False when there is no earlier one.

    Raises `UsageError` when the same key was used for something else.
    """
    if earlier is None:
        return False
    if (splice.slot, splice.wakes, splice.content) != (earlier.slot, earlier.wakes, earlier.content):
        raise UsageError("this key was used before for another message; a key names one message, sent one way")
    return True


def edited(state: State, message_id: str, content: tuple[Block, ...]) -> InboxSplice | None:
    """The waiting message gets other content and keeps its place; None when it does not wait."""
    for slot in _SLOTS:
        for start, pending in enumerate(state.slot(slot)):
            if pending.message_id == message_id:
                return InboxSplice(
                    slot=slot,
                    start=start,
                    removed=1,
                    message_id=message_id,
                    cause="edited",
                    content=content,
                    source=pending.source,
                    wakes=pending.wakes,
                )
    return None


def removed(
    state: State, message_ids: Collection[str], cause: Literal["withdrawn", "cancelled"]
) -> tuple[InboxSplice, ...]:
    """Those of the messages that still wait leave, first in line first."""
    splices: list[InboxSplice] = []
    for slot in _SLOTS:
        start = 0
        for pending in state.slot(slot):
            if pending.message_id in message_ids:
                splices.append(
                    InboxSplice(slot=slot, start=start, removed=1, message_id=pending.message_id, cause=cause)
                )
            else:
                start += 1
    return tuple(splices)


def waiting(state: State) -> frozenset[str]:
    """The ids of all messages in the inbox."""
    return frozenset(pending.message_id for slot in _SLOTS for pending in state.slot(slot))
