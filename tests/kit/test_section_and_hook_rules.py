"""The suites find what they are there to find: one fault, one broken rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from attrs import evolve

from flightlog.testing.conformance import Broken, HookCase, SectionCase, checks, hooks, sections
from flightlog_hookspecs import (
    Allow,
    Append,
    Deny,
    Head,
    Hook,
    PromptSection,
    ProposedCall,
    Retry,
    StepView,
    StoppingTurn,
    Switch,
    Usage,
    UserMessage,
    Verdict,
    hook,
    text_blocks,
)

WEATHER = {"now": "sun"}
FOREVER = threading.Event()
COUNTED = count()


@pytest.fixture(scope="module", autouse=True)
def release() -> Iterator[None]:
    yield
    FOREVER.set()


def weather(now: str) -> Callable[[], object]:
    return lambda: WEATHER.update(now=now)


STATES = {"sun": weather("sun"), "rain": weather("rain"), "night": weather("")}


def section(render: Callable[..., Any]) -> SectionCase:
    return SectionCase(
        section=PromptSection(name="weather", rank=1, render=render, limit_s=0.2), states=STATES, max_chars=20
    )


async def said_later() -> str:
    return WEATHER["now"]


def said_in_the_step(step: StepView) -> str:
    return f"{WEATHER['now']} {len(step.messages)}"


@pytest.mark.parametrize("render", [lambda: WEATHER["now"], said_later, said_in_the_step])
def test_a_section_without_a_fault_keeps_all_rules(render: Callable[..., Any]) -> None:
    assert [check.rule for check in checks(section(render))] == ["text", "same", "bounded"]
    for check in checks(section(render)):
        check()


def news(told: list[str]) -> Callable[[], str]:
    """Says what is new to it: the kernel does that."""

    def render() -> str:
        told.append(WEATHER["now"])
        return WEATHER["now"] if told[-2:-1] != told[-1:] else ""

    return render


@pytest.mark.parametrize(
    ("render", "check", "rule"),
    [
        (lambda: None, "text", sections.TEXT),
        (lambda: 1 // 0, "text", sections.TEXT),
        (FOREVER.wait, "text", sections.TEXT),
        (lambda: f"look {next(COUNTED)}", "same", sections.SAME),
        (news([]), "same", sections.SAME),
        (lambda: WEATHER["now"] * 6, "bounded", sections.BOUNDED),
    ],
    ids=["none", "raises", "hangs", "counts", "news", "long"],
)
def test_a_section_with_a_fault_breaks_the_rule_of_that_fault(render: Callable[[], Any], check: str, rule: str) -> None:
    (of_rule,) = [each for each in checks(section(render)) if each.rule == check]
    with pytest.raises(Broken) as caught:
        of_rule()
    assert caught.value.rule == rule


def test_a_section_case_without_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="section 's': give a state"):
        SectionCase(section=PromptSection(name="s", rank=1, render=str), states={})


CALL = ProposedCall(
    session="s", turn=1, step=1, position=0, call_id="c", name="pay", arguments='{"sum": 5}', effect="write"
)
LOOK = evolve(CALL, name="look", arguments="{}", effect="read")
STEP = StepView(
    session="s",
    turn=1,
    step=1,
    model="a:m",
    session_model="a:m",
    messages=[UserMessage(message_id="m", content=text_blocks("hello"))],
)
HEAD = Head(adapter="a", model="m", system="", tools=())
STOP = StoppingTurn(session="s", turn=1, steps=1, text="done", usage=Usage(), head=HEAD, continued=0)
BANK = {"open": True}


@contextmanager
def no_bank() -> Iterator[None]:
    bank = BANK.copy()
    BANK.clear()
    try:
        yield
    finally:
        BANK.update(bank)


@hook("before_tool", limit_s=0.2)
def thrifty(call: ProposedCall) -> Verdict:
    """Nothing is paid while the bank is closed."""
    return None if call.effect == "read" or BANK["open"] else Deny("the bank is closed")


@hook("before_tool", limit_s=0.2)
def shuts(call: ProposedCall) -> Verdict:
    """Asks the bank about all that is done."""
    return Allow() if BANK["open"] else Deny("the bank is closed")


def test_a_hook_without_a_fault_keeps_all_rules() -> None:
    case = HookCase(hook=shuts, views=[CALL, LOOK], broken=no_bank)
    assert [check.rule for check in checks(case)] == ["answers", "legal", "looks", "broken"]
    for check in checks(case):
        check()


def at(point: Any, body: Callable[[Any], Any]) -> Hook:
    return Hook(point=point, name="odd", body=body, limit_s=0.2)


def greedy(view: StepView) -> None:
    view.messages.clear()  # type: ignore[attr-defined]


def renames(call: ProposedCall) -> None:
    object.__setattr__(call, "name", "other")


def lets_through(call: ProposedCall) -> Verdict:
    return None if BANK.get("open", True) else Deny("the bank is closed")


@pytest.mark.parametrize(
    ("odd", "view", "check", "rule"),
    [
        (at("before_tool", lambda call: 1 // 0), CALL, "answers", hooks.ANSWERS),
        (at("before_tool", lambda call: FOREVER.wait()), CALL, "answers", hooks.ANSWERS),
        (at("before_tool", lambda call: False), CALL, "legal", hooks.LEGAL),
        (at("before_tool", lambda call: Append("no")), CALL, "legal", hooks.LEGAL),
        (at("before_step", lambda view: Switch("a:m", after_s=1)), STEP, "legal", hooks.LEGAL),
        (at("turn_stopping", lambda view: Retry()), STOP, "legal", hooks.LEGAL),
        (at("before_step", greedy), STEP, "looks", hooks.LOOKS),
        (at("before_tool", renames), CALL, "looks", hooks.LOOKS),
        (at("before_tool", lets_through), CALL, "broken", hooks.GUARD),
        (at("turn_stopping", lambda view: None if BANK else Append("x")), STOP, "broken", hooks.OBSERVER),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_hook_with_a_fault_breaks_the_rule_of_that_fault(odd: Hook, view: object, check: str, rule: str) -> None:
    (of_rule,) = [each for each in checks(HookCase(hook=odd, views=[view], broken=no_bank)) if each.rule == check]
    with pytest.raises(Broken) as caught:
        of_rule()
    assert caught.value.rule == rule


def test_what_a_hook_does_when_broken_is_looked_at_only_if_it_can_be() -> None:
    assert "broken" not in [check.rule for check in checks(HookCase(hook=shuts, views=[CALL]))]


def test_a_guard_that_says_none_of_my_business_without_looking_is_found_too() -> None:
    """It counts as letting the call through: views that it may let through do not belong into the broken world."""
    (broken,) = [each for each in checks(HookCase(hook=thrifty, views=[LOOK], broken=no_bank)) if each.rule == "broken"]
    with pytest.raises(Broken, match="let it raise, or say no"):
        broken()


def test_a_view_that_the_point_never_shows_is_refused() -> None:
    with pytest.raises(TypeError, match="hook 'thrifty': before_tool shows a ProposedCall, not a StepView"):
        HookCase(hook=thrifty, views=[STEP])
    with pytest.raises(ValueError, match="hook 'thrifty': give a view"):
        HookCase(hook=thrifty, views=[])
