from __future__ import annotations

from datetime import date

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, words
from flightlog.testing.conformance import Check, SectionCase, checks
from flightlog_hookspecs import UserMessage

from flightlog_my_plugin import my_plugin

DAY = [date(2024, 2, 29)]
CASE = SectionCase(
    section=my_plugin(lambda: DAY[0]),
    states={
        "a leap day": lambda: DAY.__setitem__(0, date(2024, 2, 29)),
        "the day after": lambda: DAY.__setitem__(0, date(2024, 3, 1)),
    },
    max_chars=100,
)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_prompt_sections(check: Check) -> None:
    check()


def test_the_model_is_told_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(Bundle(adapters=[FakeModel([words("I see.")])]), discover=["my-plugin"])
    with kernel.session("s", model="fake:model") as session:
        session.followup("What day is it?")
        session.run()
    told = [message.text for message in kernel.read("s").messages() if isinstance(message, UserMessage)]
    assert any("Today is " in text for text in told), told
