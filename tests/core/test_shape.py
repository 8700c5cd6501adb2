from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve, fields

from flightlog.core.shape import misfit
from flightlog_hookspecs.content import TextBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import AssistantMessage, InboxSplice, SessionOpened, Spill, ToolResult
from support import values


class Words(str):
    __slots__ = ()


class Stranger:
    """Of no type that any field takes."""


@pytest.mark.parametrize("cls", values.EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_that_holds_a_stranger_is_named(cls: type) -> None:
    event = values.plainest(cls)
    assert misfit(event) is None
    for field in fields(cls):
        assert misfit(evolve(event, **{field.name: Stranger()})) == field.name


RESULT = ToolResult(position=0, call_id="c", name="n", message_seq=1, outcome="ok", content=text_blocks("x"))
SPLICE = InboxSplice(slot="next_turn", start=0, message_id="m", cause="accepted")
ANSWER = AssistantMessage(attempt=1, content=text_blocks("x"), finish="stop")


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        (RESULT, "position", 1.0),
        (RESULT, "position", True),
        (RESULT, "position", None),
        (RESULT, "call_id", None),
        (RESULT, "call_id", Words("c")),
        (RESULT, "outcome", "fine"),
        (RESULT, "outcome", ["ok"]),
        (RESULT, "content", [TextBlock(text="x")]),
        (RESULT, "content", (None,)),
        (RESULT, "content", (TextBlock(text=None),)),  # type: ignore[arg-type]
        (RESULT, "content", ("x",)),
        (RESULT, "content", (TextBlock(text="x"), None)),
        (RESULT, "call_seq", "7"),
        (RESULT, "spill", Spill(sha256="", bytes=1.5)),  # type: ignore[arg-type]
        (RESULT, "spill", {}),
        (SPLICE, "slot", "next"),
        (SPLICE, "content", [TextBlock(text="x")]),
        (ANSWER, "finish", "end_turn"),
        (ANSWER, "input_tokens", None),
        (ANSWER, "content", (ToolCallBlock(call_id="c", name="n", arguments={}),)),  # type: ignore[arg-type]
        (SessionOpened(pid=1, host="h", kernel_version="0"), "plugins", (("name", "1"),)),
    ],
)
def test_what_would_not_come_back_from_the_log_is_named(event: Any, field: str, value: object) -> None:
    assert misfit(event) is None
    assert misfit(evolve(event, **{field: value})) == field


def test_an_optional_field_may_be_none() -> None:
    assert misfit(evolve(RESULT, call_seq=None, spill=None)) is None
    assert misfit(evolve(RESULT, call_seq=3, spill=Spill(sha256="ab", bytes=1))) is None
