"""Snapshots: what a session came to at one of its rows, so that opening it need not read all rows before.

A disposable cache and never a fact. One may be missing, old or damaged at any time, and whoever reads all rows comes to
the same. So there is nothing in it that the rows do not say, and nothing may follow from there being one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, get_args, get_origin, get_type_hints

from attrs import field, fields, frozen, has

from flightlog.core.changed import changed
from flightlog.core.growing_set import GrowingSet
from flightlog.core.history import History, Outline
from flightlog.core.limits import SNAPSHOT_CHARS_PER_ROW, SNAPSHOT_MIN_ROWS
from flightlog.core.state import EMPTY, State

FORMAT: Final = 1
"""Version of the form that snapshots are written in."""


@frozen(kw_only=True)
class Snapshot:
    """A session up to some row: its state but for the sets in it that only grow, and the newest part of its history.

    The messages stand in their rows. What came into the sets is kept once, and so is the part of the history that
    stays as it is: see `Items`.
    """

    state: State
    history: Outline


@frozen(kw_only=True)
class Items:
    """What came into those sets of a state that only grow, and the messages that nothing comes between any more.

    So a snapshot costs no more, the more of them there are.
    """

    questions: frozenset[int] = frozenset()
    outcome_questions: frozenset[int] = frozenset()
    letters: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    timer_names: frozenset[str] = frozenset()
    checkpoints: frozenset[int] = frozenset()
    messages: Outline = field(factory=Outline)


@frozen
class Kept:
    """What all items so far hold: the sets of `state`, and the first `messages` of the history `rewritten_at` then."""

    state: State = EMPTY
    messages: int = 0
    rewritten_at: int = 0


NOTHING_KEPT: Final = Kept()
"""Before the first items."""

SETS: Final = tuple(field.name for field in fields(Items) if field.name != "messages")
"""The names of the sets that only grow."""


def taken(state: State, history: History, kept: Kept) -> tuple[Snapshot, Items, Kept]:
    """The snapshot of a session that has come to `state`, with the messages of `history`.

    Also what is to be kept once, since `kept` was, and what that comes to.
    """
    settled = history.settled()
    first = kept.messages if kept.rewritten_at == history.rewritten_at else 0
    now, then = _sets(state), _sets(kept.state)
    grown = {name: now[name].beyond(then[name]) for name in SETS}
    return (
        Snapshot(state=_with(state, dict.fromkeys(SETS, GrowingSet())), history=history.outline(settled)),
        Items(**grown, messages=history.outline(first, settled)),
        Kept(state, settled, history.rewritten_at),
    )


def filled(snapshot: Snapshot, items: Sequence[Items]) -> tuple[State, Outline, Kept]:
    """What the session had come to, with the `items` that were kept by then: its state and its whole history.

    And what those items hold.
    """
    sets = {name: GrowingSet.of(frozenset().union(*[getattr(i, name) for i in items])) for name in SETS}
    state, history = _with(snapshot.state, sets), snapshot.history.joined([each.messages for each in items])
    return state, history, Kept(state, len(history.rows) - len(snapshot.history.rows), history.rewritten_at)


def _sets(state: State) -> dict[str, GrowingSet[Any]]:
    owners = {"checkpoints": state.task}
    return {name: getattr(owners.get(name, state), name, GrowingSet()) for name in SETS}


def _with(state: State, sets: dict[str, GrowingSet[Any]]) -> State:
    checkpoints, others = sets["checkpoints"], {name: sets[name] for name in SETS if name != "checkpoints"}
    task = changed(state.task, checkpoints=checkpoints) if state.task else None
    return changed(state, task=task, **others)


def is_due(rows: int, chars: int) -> bool:
    """Whether there is to be another snapshot, `rows` rows behind one that has so many `chars`.

    So the larger they are, the rarer; all of them together never take more than a small part of what the log does.
    """
    return rows >= max(SNAPSHOT_MIN_ROWS, chars // SNAPSHOT_CHARS_PER_ROW)


def classes_in(hint: Any) -> dict[type, dict[str, Any]]:
    """All attrs classes that a value of type `hint` may hold, each with the types of its fields."""
    found: dict[type, dict[str, Any]] = {}
    waiting = [hint]
    while waiting:
        each = waiting.pop()
        cls = get_origin(each) or each
        waiting += get_args(each)
        if isinstance(cls, type) and has(cls) and cls not in found:
            found[cls] = get_type_hints(cls)
            waiting += [found[cls][field.name] for field in fields(cls)]
    return found


def shape() -> str:
    """A fingerprint of all that can stand in a snapshot: another one for other classes, fields, types or defaults."""
    classes = classes_in(tuple[Snapshot, Items])
    said = [
        (cls.__qualname__, field.name, repr(classes[cls][field.name]), repr(field.default))
        for cls in sorted(classes, key=lambda cls: cls.__qualname__)
        for field in fields(cls)
    ]
    return sha256(repr(said).encode()).hexdigest()
