from __future__ import annotations

import pytest
from attrs import evolve
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, SubagentCase, checks
from flightlog_hookspecs import ToolResult

from flightlog_my_plugin import MY_PLUGIN

CASE = SubagentCase(subagent=MY_PLUGIN, task="She told her that she was late.")


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_subagents(check: Check) -> None:
    check()


def test_it_is_offered_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["my-plugin"])
    assert kernel.registry.problems == []
    assert [offer.subagents[MY_PLUGIN.name].item for offer in kernel.registry.offers] == [MY_PLUGIN]


def test_its_last_words_are_the_result_of_the_call(kernel_with: KernelWith) -> None:
    parent = FakeModel([calls(("my_plugin", {"task": "She told her that she was late."})), words("I see.")])
    child = FakeModel([words("Who was late?")], "small")
    mine = evolve(MY_PLUGIN, model="small:model")  # a script of its own
    kernel = kernel_with(Bundle(adapters=[parent, child], subagents=[mine]))
    with kernel.session("s", model="fake:model") as session:
        session.followup("Is this clear?")
        turn = session.run()
    assert turn is not None and turn.text == "I see."
    (result,) = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert (result.outcome, result.text) == ("ok", "Who was late?")
    parent.assert_all_played()
    child.assert_all_played()
