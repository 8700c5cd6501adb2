"""Questions to people about calls, and which answers they allow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flightlog.core.state import State
from flightlog_hookspecs.events import About, Decision

ANSWERS: Final[Mapping[About, frozenset[Decision]]] = MappingProxyType(
    {
        "": frozenset({"allowed", "denied", "cancelled"}),
        "outcome": frozenset({"done", "not_done", "unknown", "cancelled"}),
    }
)
"""What may be said to a question, by what it is about."""
_WANTED: Final[Mapping[About, str]] = MappingProxyType(
    {
        "": "asks whether a call may start: allow or deny it (approve)",
        "outcome": "asks how a call ended: say done, not_done or unknown (answer)",
    }
)


def about(state: State, asked_seq: int) -> About:
    """What the question at `asked_seq` is about."""
    return "outcome" if asked_seq in state.outcome_questions else ""


def objection(state: State, asked_seq: int, decision: Decision) -> str:
    """Why `decision` is no answer to a question at `asked_seq`; "" when it is, were it late."""
    if asked_seq not in state.questions:
        return f"no question was asked at seq {asked_seq}"
    return _unfit(about(state, asked_seq), asked_seq, decision)


def unasked(asked: Mapping[int, About], asked_seq: int, decision: Decision) -> str:
    """Why `decision` answers none of the open questions in the rows `asked`; "" when it does."""
    if asked_seq not in asked:
        some = f"{'one is' if len(asked) == 1 else 'some are'} at seq {', '.join(map(str, sorted(asked)))}"
        return f"no question is open at seq {asked_seq}; {some if asked else 'none is open at all'}"
    return _unfit(asked[asked_seq], asked_seq, decision)


def _unfit(asked: About, asked_seq: int, decision: Decision) -> str:
    return "" if decision in ANSWERS[asked] else f"the question at seq {asked_seq} {_WANTED[asked]}"
