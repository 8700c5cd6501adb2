from __future__ import annotations

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, HookCase, checks
from flightlog_hookspecs import ProposedCall, ToolResult, tool

from flightlog_my_plugin import my_plugin


def proposed(text: str) -> ProposedCall:
    arguments = f'{{"text": "{text}"}}'
    return ProposedCall(
        session="s", turn=1, step=1, position=0, call_id="c", name="note", arguments=arguments, effect="write"
    )


CASE = HookCase(hook=my_plugin, views=[proposed("short"), proposed("long" * 5000)])


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_hooks(check: Check) -> None:
    check()


@tool(effect="write")
def note(text: str) -> str:
    """Note a text.

    Args:
        text: what to note
    """
    return "noted"


def test_it_is_asked_once_it_is_installed(kernel_with: KernelWith) -> None:
    model = FakeModel([calls(("note", {"text": "short"}), ("note", {"text": "long" * 5000})), words("Done.")])
    kernel = kernel_with(Bundle(adapters=[model], tools=[note]), discover=["my-plugin"])
    with kernel.session("s", model="fake:model") as session:
        session.followup("Note both.")
        session.run()
    results = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert [result.outcome for result in results] == ["ok", "denied"]
    model.assert_all_played()
