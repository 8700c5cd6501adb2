from __future__ import annotations

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, ToolCase, checks
from flightlog_hookspecs import ToolResult

from flightlog_my_plugin import my_plugin

CASE = ToolCase(tool=my_plugin, arguments=[{"text": "to be or not"}], refused=[{"text": " "}, {"text": 5}])


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_tools(check: Check) -> None:
    check()


def test_a_model_can_use_it_once_it_is_installed(kernel_with: KernelWith) -> None:
    model = FakeModel([calls(("my_plugin", {"text": "to be or not"})), words("Four.")])
    kernel = kernel_with(Bundle(adapters=[model]), discover=["my-plugin"])
    with kernel.session("s", model="fake:model") as session:
        session.followup("How many words are there?")
        turn = session.run()
    assert turn is not None and turn.text == "Four."
    (result,) = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert (result.outcome, result.text) == ("ok", "4 words")
    model.assert_all_played()
