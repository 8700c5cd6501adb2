"""Facts: what tools have noted of a session, so that it stays whatever becomes of the conversation.

They are what the results in the log say, one behind the other; nothing else changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import evolve

from flightlog.core.limits import FACT_NAME_MAX_CHARS, FACTS_MAX, FACTS_MAX_CHARS
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import ToolResult
from flightlog_hookspecs.tools import Fact

NO_FACTS: Final[Mapping[str, str]] = MappingProxyType({})


def noted(facts: Mapping[str, str], new: tuple[Fact, ...]) -> Mapping[str, str]:
    """`facts` after those that are `new`, in the order in which their names came up first."""
    after = {**facts, **{fact.name: fact.text for fact in new}}
    return MappingProxyType({name: text for name, text in after.items() if text})


def unfit(facts: Mapping[str, str], new: tuple[Fact, ...]) -> str:
    """Why `new` ones cannot be noted beside these `facts`; "" when they can."""
    if wrong := next((fact for fact in new if not 0 < len(fact.name.strip()) <= FACT_NAME_MAX_CHARS), None):
        return f"the name of a fact has 1 to {FACT_NAME_MAX_CHARS} characters, not {len(wrong.name.strip())}."
    after = noted(facts, new)
    chars = sum(len(name) + len(text) for name, text in after.items())
    if len(after) > FACTS_MAX or chars > FACTS_MAX_CHARS:
        return (
            f"there would be {len(after)} of {chars} characters, and there may be {FACTS_MAX} of {FACTS_MAX_CHARS} in "
            "all. Take some away, or use fewer words."
        )
    return ""


def fitting(result: ToolResult, facts: Mapping[str, str]) -> ToolResult:
    """`result` if what it notes has room beside these `facts`, else the error that it comes to."""
    why = unfit(facts, result.facts) if result.facts else ""
    if not why:
        return result
    words = f"The call ran, but its facts were not noted: {why} Its effects stand."
    return evolve(result, outcome="error", content=text_blocks(words), facts=())
