"""The suite of subagents finds what it is there to find: one fault, one broken rule."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from flightlog.testing.conformance import Broken, SubagentCase, checks, subagents
from flightlog_hookspecs import Subagent, Tool, tool


@tool(effect="read")
def look() -> str:
    """Look."""
    return "sky"


@tool(effect="write")
def paint() -> str:
    """Paint."""
    return "painted"


SCOUT = Subagent(name="scout", description="Looks.", prompt="You look.", tools=("look",), effect="read")
BESIDE = evolve(SCOUT, background=True, effect="external")
CASE = SubagentCase(subagent=SCOUT, tools=[look, paint])


@pytest.mark.parametrize("subagent", [SCOUT, BESIDE, evolve(BESIDE, tools=None), evolve(SCOUT, tools=())])
def test_a_subagent_without_a_fault_keeps_all_rules(subagent: Subagent) -> None:
    rules = checks(evolve(CASE, subagent=subagent))
    last = "goes-on" if subagent.background else "cut-off"
    assert [check.rule for check in rules] == ["offered", "effect", "task", "tools", last]
    for check in rules:
        check()


def broken_rules(subagent: Subagent, tools: list[Tool]) -> set[str]:
    found = set()
    for check in checks(SubagentCase(subagent=subagent, tools=tools)):
        try:
            check()
        except Broken as broken:
            found.add(broken.rule)
    return found


@pytest.mark.parametrize(
    ("faulty", "rule"),
    [
        ({"description": " "}, subagents.OFFERED),
        ({"prompt": ""}, subagents.OFFERED),
        ({"name": "two words"}, subagents.OFFERED),
        ({"timeout_s": -1.0}, subagents.OFFERED),
        ({"tools": ("look", "paint")}, subagents.EFFECT),
        ({"tools": ("look", "smell")}, subagents.TASK),
    ],
)
def test_a_fault_breaks_its_rule(faulty: dict[str, Any], rule: str) -> None:
    assert rule in broken_rules(evolve(SCOUT, **faulty), [look, paint])


def test_one_whose_name_a_tool_of_its_parent_has_is_not_taken() -> None:
    taken = Tool(body=paint.body, name="scout", description="Paint.", effect="write")
    assert subagents.OFFERED in broken_rules(SCOUT, [look, taken])
