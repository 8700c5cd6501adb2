"""The adapters in the box keep the rules that every adapter is held to, in all shapes their providers send."""

from __future__ import annotations

import pytest

from flightlog.testing import FakeModel, calls, words
from flightlog.testing.conformance import AdapterCase, Check, Recording, checks
from flightlog_hookspecs import Adapter, TextBlock, ToolCallBlock
from flightlog_plugins.scripted import ScriptedAdapter
from support.wire_recordings import CASES


def fake(url: str) -> Adapter:
    return FakeModel([[*words("I will look."), *calls(("look", {"at": "sky"}))]])


SCRIPTED = AdapterCase(
    name="scripted",
    adapter=lambda url: ScriptedAdapter(),
    model="say?text=hello there",
    recordings=[Recording(name="says", content=(TextBlock(text="hello there"),))],
)
FAKE = AdapterCase(
    name="fake",
    adapter=fake,
    model="model",
    recordings=[
        Recording(
            name="looks",
            content=(
                TextBlock(text="I will look."),
                ToolCallBlock(call_id="call_1", name="look", arguments='{"at": "sky"}'),
            ),
            finish="tool_calls",
        )
    ],
)


@pytest.mark.parametrize("check", [check for case in [*CASES, SCRIPTED, FAKE] for check in checks(case)], ids=str)
def test_an_adapter_in_the_box_keeps_the_rules(check: Check) -> None:
    check()
