"""A prompt section: what the model is told besides the conversation, and told again when it reads differently."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from flightlog_hookspecs import PromptSection, hookimpl

flightlog_contract = 1


def my_plugin(today: Callable[[], date] = date.today) -> PromptSection:
    """The section. What it depends on is an argument, so that a test can say what day it is."""

    def render() -> str:
        return f"Today is {today():%A, %d %B %Y}."

    return PromptSection(name="my-plugin", rank=100, kind="runtime", render=render)


@hookimpl
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer the section."""
    register(my_plugin())
