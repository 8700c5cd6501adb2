"""When a call may give a child a task: a pure decision about the state it is logged in."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.children import objection
from flightlog.core.growing_set import GrowingSet
from flightlog.core.limits import Limits
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs import Subagent
from flightlog_hookspecs.events import SubagentSpawned

SCOUT = Subagent(name="scout", description="Looks.", prompt="You look.")


def with_children(kinds: list[str]) -> State:
    """A session whose children, one of each kind, are all at work."""
    tasks = {
        f"s/{number}": SubagentSpawned(child=f"s/{number}", subagent=kind, depth=1, invocation_id=str(number), task="x")
        for number, kind in enumerate(kinds)
    }
    return evolve(EMPTY, children=tasks, unsettled=tuple(tasks), assigned=GrowingSet((frozenset("0123"),)))


@given(st.lists(st.sampled_from(["scout", "other"]), max_size=8), st.integers(1, 8), st.none() | st.integers(1, 8))
def test_one_more_may_work_while_neither_its_kind_nor_the_session_has_all_it_may(
    kinds: list[str], most: int, most_alike: int | None
) -> None:
    subagent = evolve(SCOUT, at_once=most_alike)
    why = objection(with_children(kinds), subagent, Limits(subagents_at_once=most), "new")
    room = len(kinds) < most and (most_alike is None or kinds.count("scout") < most_alike)
    assert (why == "") == room


@given(st.integers(0, 5), st.integers(0, 5))
def test_children_have_children_as_deep_as_they_may(depth: int, deepest: int) -> None:
    why = objection(evolve(EMPTY, depth=depth), SCOUT, Limits(subagent_depth=deepest), "new")
    assert (why == "") == (depth < deepest)


def test_a_call_starts_one_child_at_most() -> None:
    assert "one child" in objection(with_children([]), SCOUT, Limits(), "0")


def test_those_that_have_settled_take_no_place() -> None:
    state = evolve(with_children(["scout"] * 3), unsettled=())
    assert objection(state, evolve(SCOUT, at_once=1), Limits(subagents_at_once=1), "new") == ""
