"""What a body may return, and how it reaches the model, the log and the blob table."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registry import Registry
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import Done, TextBlock, ThinkingBlock, Tool, ToolCallBlock, ToolOutput
from flightlog_hookspecs.events import ToolResult
from support.kernels import events_of, session_of, verified
from support.places import reached

Point = namedtuple("Point", "x y")  # noqa: PYI024


class Colour(enum.StrEnum):
    RED = "red"


def returning(value: Any) -> Tool:
    """A tool that returns `value`."""

    async def body() -> Any:
        return value

    return Tool(body=body, name="give", description="Give.", effect="write")


async def result_of(path: Path, value: Any, limits: Limits | None = None) -> ToolResult:
    """Let a tool return `value`; the session must go on, the log must verify."""
    model = FakeModel([calls(("give", {}))])
    async with session_of(path, model, returning(value), limits=limits) as session:
        await session.followup("hi")
        turn = await session.run()
        assert turn.reason == "completed"
    async with session_of(path, model) as session:
        await session.followup("again")
        assert (await session.run()).reason == "completed"
    assert verified(path, model)
    (result,) = events_of(path, ToolResult)
    return result


def blob_of(path: Path, result: ToolResult) -> bytes:
    """The whole of a spilled result."""
    assert result.spill is not None
    with flightlog.open_log(path, discover=False) as log:
        return log._store.blob(bytes.fromhex(result.spill.sha256))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no output)"),
        ("", "(no output)"),
        ("words", "words"),
        ("größe 東京 🚀", "größe 東京 🚀"),
        ("nul\0 inside", "nul\0 inside"),
        ("lone \ud800 half", "lone \ud800 half"),
        (True, "true"),
        (0, "0"),
        (-1.5, "-1.5"),
        ([], "[]"),
        ({}, "{}"),
        ({"b": 1, "a": [None, "x"]}, '{"b":1,"a":[null,"x"]}'),
        ((1, (2, 3)), "[1,[2,3]]"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(z=1, a=2), '{"z":1,"a":2}'),
        (Colour.RED, "red"),
        ([Colour.RED], '["red"]'),
        (b"plain bytes", "plain bytes"),
        (bytearray(b"more"), "more"),
        (memoryview(b"view"), "view"),
        (b"", "(no output)"),
        ("größe".encode(), "größe"),
        (ToolOutput(content="built"), "built"),
        (ToolOutput(content=(TextBlock(text="one "), TextBlock(text="two"))), "one two"),
        (ToolOutput(content=()), "(no output)"),
        (ToolOutput(content=""), "(no output)"),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:40],
)
async def test_what_a_body_returns_is_what_the_model_is_shown(tmp_path: Path, value: object, text: str) -> None:
    result = await result_of(tmp_path / "a.db", value)
    assert (result.outcome, result.text, result.spill) == ("ok", text, None)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        float("nan"),
        [float("inf")],
        {1: "key is no string"},
        2**70,
        {"deep": [2**70]},
        lambda: None,
        ValueError("returned, not raised"),
        iter([1]),
        type,
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:30],
)
async def test_what_json_cannot_carry_is_an_error_that_says_that_the_call_ran(tmp_path: Path, value: object) -> None:
    result = await result_of(tmp_path / "a.db", value)
    assert result.outcome == "error"
    assert "The call ran" in result.text
    assert "Its effects stand" in result.text


async def test_a_value_that_holds_itself_is_refused_and_not_followed_for_ever(tmp_path: Path) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    nested: object = "x"
    for _ in range(100_000):
        nested = [nested]
    for number, value in enumerate((cycle, nested)):
        result = await result_of(tmp_path / f"{number}.db", value)
        assert result.outcome == "error"
        assert len(result.text) < 2000


@pytest.mark.parametrize(
    "content",
    [
        5,
        None,
        ["text"],
        ("text",),
        (TextBlock(text=5),),
        (TextBlock(text=None),),
        (ToolCallBlock(call_id=1, name=2, arguments=3),),
        [TextBlock(text="a list")],
    ],
)
async def test_an_output_built_wrongly_is_one_error_result(tmp_path: Path, content: object) -> None:
    output = ToolOutput(content="x")
    object.__setattr__(output, "content", content)
    result = await result_of(tmp_path / "a.db", output)
    assert result.outcome == "error"


async def test_an_error_output_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    result = await result_of(tmp_path / "a.db", ToolOutput(content="not today", is_error=True))
    assert (result.outcome, result.text) == ("error", "not today")


async def test_five_megabytes_are_kept_whole_and_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    text = "".join(f"line {number}\n" for number in range(500_000))
    assert len(text) > 5_000_000
    result = await result_of(path, text)
    assert result.outcome == "ok"
    assert len(result.text) < 33_000
    assert result.text.startswith("line 0\nline 1\n")
    assert result.text.endswith("line 499999\n")
    assert f"blob {sha256(text.encode()).hexdigest()}" in result.text
    assert "characters left out" in result.text
    assert blob_of(path, result) == text.encode()


async def test_the_same_large_result_twice_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    text = "x" * 3_000_000
    model = FakeModel([calls(("give", {}), ("give", {})), calls(("give", {}))])
    async with session_of(path, model, returning(text)) as session:
        await session.followup("hi")
        await session.run()
    assert len(events_of(path, ToolResult)) == 3
    assert path.stat().st_size < 2 * len(text)


async def test_bytes_that_are_no_text_are_kept_exactly_and_shown_roughly(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    junk = bytes(range(256)) * 10
    result = await result_of(path, junk)
    assert result.outcome == "ok"
    assert "binary data, shown approximately" in result.text
    assert result.spill is not None
    assert (result.spill.bytes, result.spill.binary) == (len(junk), True)
    assert blob_of(path, result) == junk


@given(raw=st.binary(max_size=400), shown=st.integers(1, 100))
def test_any_bytes_are_either_shown_exactly_or_kept_whole(raw: bytes, shown: int) -> None:
    from flightlog.runtime.tool_output import rendered

    end = rendered(raw, Limits(tool_output_max_chars=shown), Redacting(Registry()))
    if end.blob is None:
        (block,) = end.content
        assert block.text == (raw.decode() or "(no output)")
        assert len(block.text) <= max(shown, len("(no output)"))
    else:
        assert end.blob == (sha256(raw).digest(), raw)
        assert end.spill is not None
        assert end.spill.bytes == len(raw)


@pytest.mark.parametrize("value", ["x" * 1001, b"x" * 1001, "ä" * 600, ["x" * 1000]], ids=lambda v: repr(v)[:8])
async def test_what_is_larger_than_can_be_kept_is_an_error_that_says_so(tmp_path: Path, value: object) -> None:
    limits = Limits(tool_output_max_bytes=1000, tool_output_max_chars=100)
    result = await result_of(tmp_path / "a.db", value, limits)
    assert result.outcome == "error"
    assert "larger than the 1000 that can be kept" in result.text
    assert result.spill is None


async def test_a_result_at_the_limits_is_shown_whole(tmp_path: Path) -> None:
    limits = Limits(tool_output_max_bytes=1000, tool_output_max_chars=100)
    exact = await result_of(tmp_path / "a.db", "x" * 100, limits)
    assert (exact.text, exact.spill) == ("x" * 100, None)
    over = await result_of(tmp_path / "b.db", "x" * 101, limits)
    assert over.spill is not None
    most = await result_of(tmp_path / "c.db", "x" * 1000, limits)
    assert most.outcome == "ok"


async def test_a_thinking_block_in_an_output_is_kept_as_it_is(tmp_path: Path) -> None:
    content = (ThinkingBlock(text="hm"), TextBlock(text="so"))
    result = await result_of(tmp_path / "a.db", ToolOutput(content=content))
    assert result.text == "so"


class Lazy(dict[str, Any]):
    """A mapping that looks its items up when they are asked for."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(a=1)
        self._error = error

    def items(self) -> Any:
        raise self._error


class Blank(int):
    """A number that does not say which."""

    def __int__(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "value",
    [Lazy(OSError("gone")), [Lazy(SystemExit(3))], Blank(1), ToolOutput(content=(Lazy(KeyError()),))],  # type: ignore[arg-type]
    ids=["mapping", "exit", "number", "block"],
)
async def test_what_cannot_be_looked_at_is_one_failed_call(tmp_path: Path, value: Any) -> None:
    result = await result_of(tmp_path / "a.db", value)
    assert result.outcome == "error"
    assert "Its effects stand." in result.text


async def test_what_a_reconciler_brings_and_nobody_can_look_at_is_one_failed_call(tmp_path: Path) -> None:
    assert await reached(tmp_path / "a.db", "reconcile, sync", lambda: Done(Lazy(OSError("gone")))) == "error"
