"""The rules of a prompt section."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import trio
from attrs import field, frozen

from flightlog.runtime.plugin_call import Failed, call
from flightlog.runtime.prompting import given_step
from flightlog.testing.conformance.check import Broken, Check, checks_of
from flightlog_hookspecs import PromptSection, StepView, TextBlock, UserMessage

TEXT: Final = "it renders a text, in time"
SAME: Final = "the same state renders the same text"
BOUNDED: Final = "its text is bounded"


STEP: Final = StepView(
    session="conformance",
    turn=1,
    step=1,
    model="fake:model",
    session_model="fake:model",
    messages=(UserMessage(message_id="m", content=(TextBlock(text="Good morning"),)),),
)
"""What a section that wants the step is given."""


def _as_it_is() -> None:
    """Leave the state alone."""


@frozen(kw_only=True)
class SectionCase:
    """A section, and the states of the world that it may be rendered in."""

    section: PromptSection
    """The section."""
    states: Mapping[str, Callable[[], object]] = field(factory=lambda: {"as it is": _as_it_is})
    """By name, functions that bring a state about, from any other one. Have one where there is most to say."""
    max_chars: int = 4000
    """The longest text it may have: a model is given it with every request, or each time it changes."""

    def __attrs_post_init__(self) -> None:
        if not self.states:
            raise ValueError(f"section {self.section.name!r}: give a state that it is rendered in")


def section_checks(case: SectionCase) -> Iterator[Check]:
    """Every check of `case`."""
    return checks_of(case.section.name, case, RULES)


async def _text(case: SectionCase) -> None:
    for name in case.states:
        await _rendered(case, name)


async def _same(case: SectionCase) -> None:
    """Each state twice, and once more on the way back: what was before must not show."""
    forth = {name: await _rendered(case, name) for name in case.states}
    for name in reversed(list(case.states)):
        for _ in range(2):
            if (text := await _rendered(case, name)) != forth[name]:
                raise Broken(SAME, f"in state {name!r} it said {forth[name]!r:.200}, and then {text!r:.200}")


async def _bounded(case: SectionCase) -> None:
    for name in case.states:
        if len(text := await _rendered(case, name)) > case.max_chars:
            raise Broken(BOUNDED, f"in state {name!r} it has {len(text)} characters, over {case.max_chars}")


async def _rendered(case: SectionCase, state: str) -> str:
    case.states[state]()
    section = given_step(case.section)
    try:
        text: object = await call(section.render, STEP, limit_s=section.limit_s, threads=trio.CapacityLimiter(1))
    except Failed as failed:
        raise Broken(TEXT, f"in state {state!r} it {failed}") from failed
    if not isinstance(text, str):
        raise Broken(TEXT, f"in state {state!r} it returned {type(text).__name__}, not a string")
    return text


RULES: Final[Mapping[str, Callable[[SectionCase], Awaitable[None]]]] = {
    "text": _text,
    "same": _same,
    "bounded": _bounded,
}
