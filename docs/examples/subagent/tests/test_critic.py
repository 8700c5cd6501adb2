from __future__ import annotations

import pytest
from attrs import evolve
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, SubagentCase, checks
from flightlog_hookspecs import ToolResult

from flightlog_critic import CRITIC

CASE = SubagentCase(subagent=CRITIC, task="She told her that she was late.")


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_subagents(check: Check) -> None:
    check()


def test_it_is_offered_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["critic"])
    assert kernel.registry.problems == []
    assert [offer.subagents[CRITIC.name].item for offer in kernel.registry.offers] == [CRITIC]


def test_its_last_words_are_the_result_of_the_call(kernel_with: KernelWith) -> None:
    parent = FakeModel([calls(("critic", {"task": "She told her that she was late."})), words("I see.")])
    child = FakeModel([words("Who was late?")], "small")
    mine = evolve(CRITIC, model="small:model")  # a script of its own
    kernel = kernel_with(Bundle(adapters=[parent, child], subagents=[mine]))
    with kernel.session("s", model="fake:model") as session:
        session.followup("Is this clear?")
        turn = session.run()
    assert turn is not None and turn.text == "I see."
    (result,) = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert (result.outcome, result.text) == ("ok", "Who was late?")
    parent.assert_all_played()
    child.assert_all_played()
