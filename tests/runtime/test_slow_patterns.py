"""Patterns that take for ever to match: the call's error, while all else goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import trio
from msgspec import Meta

from flightlog.core.tool_schema import prepare
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Arguments, Hook, Tool, tool
from flightlog_hookspecs.events import ToolResult
from support.kernels import events_of, session_of, verified

FOR_EVER = "^(a+)+$"
LONG = "a" * 60 + "!"


@tool(effect="read", mode="parallel")
async def typed(it: Annotated[str, Meta(pattern=FOR_EVER)]) -> str:
    """Take it."""
    return it


def explicit(properties: dict[str, Any], **more: Any) -> Tool:
    async def body(**arguments: object) -> str:
        return str(arguments)

    parameters = {"type": "object", "properties": properties, **more}
    return Tool(body=body, name="typed", description="Take it.", parameters=parameters, effect="read", mode="parallel")


@tool(effect="read", mode="parallel")
async def other() -> str:
    """Work."""
    return "as ever"


WAYS = {
    "annotation": (typed, {"it": LONG}),
    "pattern": (explicit({"it": {"type": "string", "pattern": FOR_EVER}}), {"it": LONG}),
    "names": (explicit({}, patternProperties={FOR_EVER: {}}), {LONG: 1}),
    "reference": (explicit({"it": {"$ref": "#/far"}}, far={"pattern": FOR_EVER}), {"it": LONG}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_pattern_that_takes_for_ever_is_one_failed_call(tmp_path: Path, way: str) -> None:
    slow, arguments = WAYS[way]
    model = FakeModel([calls(("typed", arguments), ("other", {})), words("Fine.")])
    async with session_of(tmp_path / "a.db", model, slow, other) as session:
        await session.followup("go")
        with trio.fail_after(30):
            assert (await session.run()).text == "Fine."
    failed, fine = sorted(events_of(tmp_path / "a.db", ToolResult), key=lambda result: result.position)
    assert (failed.outcome, fine.text) == ("error", "as ever")
    assert "could not be checked against its patterns in time" in failed.text
    verified(tmp_path / "a.db", model)


async def test_arguments_of_a_guard_are_bounded_too(tmp_path: Path) -> None:
    guard = Hook(point="before_tool", body=lambda _: Arguments(f'{{"it":"{LONG}"}}'), name="changes")
    model = FakeModel([calls(("typed", {"it": "a"})), words("Fine.")])
    async with session_of(tmp_path / "a.db", model, typed, plugins=[Bundle(hooks=[guard])]) as session:
        await session.followup("go")
        with trio.fail_after(30):
            assert (await session.run()).text == "Fine."
    (denied,) = events_of(tmp_path / "a.db", ToolResult)
    assert denied.outcome == "denied"


@pytest.mark.parametrize(("given", "outcome"), [({"it": "aaa"}, "ok"), ({"it": "b"}, "error"), ("[", "error")])
async def test_arguments_that_are_judged_in_time_are_judged_as_ever(
    tmp_path: Path, given: object, outcome: str
) -> None:
    model = FakeModel([calls(("typed", given)), words("Fine.")])
    async with session_of(tmp_path / "a.db", model, typed) as session:
        await session.followup("go")
        await session.run()
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert result.outcome == outcome
    assert "in time" not in result.text


@pytest.mark.parametrize(
    ("schema", "slow"),
    [
        ({"pattern": r"^[a-z0-9_-]+$"}, False),
        ({"pattern": r"^\\d{4}-\\d{2}-\\d{2}$"}, False),
        ({"items": {"pattern": "^https?:"}}, False),
        ({"properties": {"pattern": {"type": "string"}}}, False),
        ({"pattern": "a"}, True),
        ({"pattern": "^a*a*$"}, True),
        ({"pattern": "^a{1,}a{0,9}$"}, True),
        ({"pattern": "^a|b+"}, True),
        ({"pattern": "^(?:a)"}, True),
        ({"anyOf": [{"not": {"pattern": "a+"}}]}, True),
    ],
)
def test_only_what_may_take_long_is_tried_apart(schema: dict[str, Any], slow: bool) -> None:
    assert prepare(explicit({"it": schema}), "p", "1").slow is slow
