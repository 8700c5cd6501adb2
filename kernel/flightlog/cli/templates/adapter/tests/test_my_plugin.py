from __future__ import annotations

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing.conformance import AdapterCase, Check, Recording, checks
from flightlog_hookspecs import TextBlock

from flightlog_my_plugin import MyPlugin

# A recording without frames: there is no wire. One with frames is played to the adapter by a server at the address
# that it is given, and broken off everywhere.
CASE = AdapterCase(
    name="my-plugin",
    adapter=lambda url: MyPlugin(),
    model="m",
    recordings=[Recording(name="hello", content=(TextBlock(text="hello "),))],
)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_adapters(check: Check) -> None:
    check()


def test_a_session_can_have_its_model_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["my-plugin"])
    with kernel.session("s", model="my-plugin:m") as session:
        session.followup("Is anybody there?")
        turn = session.run()
    assert turn is not None
    assert (turn.reason, turn.text) == ("completed", "Is anybody there? ")
