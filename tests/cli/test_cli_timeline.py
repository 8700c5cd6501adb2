"""What the timeline says of each kind of event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from flightlog.cli.answered import Answered
from flightlog.cli.live import LiveView
from flightlog.cli.output import Output
from flightlog.cli.timeline import described
from flightlog_hookspecs.events import Record, SessionClosed, StepEnd, StepStart, TaskState, ToolProgress, TurnStart
from support import values

SILENT = {SessionClosed, TurnStart, StepStart, StepEnd}
"""Whose kind says it all."""


@pytest.mark.parametrize("cls", values.EVENT_CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 6)
def test_every_event_is_described_on_one_line(cls: Any, data: st.DataObject) -> None:
    said = described(data.draw(values.records(cls)).event)
    assert "\n" not in said
    assert "\x1b" not in said
    if cls in SILENT:
        assert said == ""


@pytest.mark.parametrize("cls", sorted(set(values.KNOWN_CLASSES) - SILENT, key=lambda cls: cls.__name__))
def test_no_kind_with_something_to_say_is_forgotten(cls: type) -> None:
    once = settings(database=None, phases=[Phase.generate])
    find(values.records(cls).map(lambda record: described(record.event)), bool, settings=once)


def test_where_a_task_stands_is_said_with_why_and_until_when() -> None:
    state = TaskState(state="paused", cause="timer", message="waits", resume_at_us=1_700_000_000_000_000)
    assert described(state) == "paused \u00b7 timer \u00b7 waits \u00b7 until 2023-11-14 22:13:20"


def test_what_a_running_tool_says_is_a_line_of_its_own_live_and_in_the_flight_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = ToolProgress(position=0, call_id="c", name="look", call_seq=7, text="half\nway")
    record = Record(session="s", seq=8, at_us=0, turn=1, step=1, epoch=1, event=progress)
    LiveView(Output(as_json=False), str, Answered()).show(record)
    assert capsys.readouterr().out == "  … look: half\u21b5way\n"
    assert described(progress) == "look: half↵way"
