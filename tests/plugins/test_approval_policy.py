"""The approval policy: rules per tool and per effect, and what a person is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.errors import UsageError
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Allow, Ask, Deny, Effect, ProposedCall, Tool
from flightlog_plugins.approval_policy import NAME_MAX_CHARS, SHOWN_MAX_CHARS, ApprovalPolicy, Rule, question
from support.kernels import outcomes_of

PROPOSED = ProposedCall(
    session="s", turn=1, step=1, position=0, call_id="c", name="send", arguments='{"to": "ada"}', effect="external"
)
RULES = st.sampled_from(get_args(Rule))
EFFECTS = st.sampled_from(get_args(Effect))


@pytest.mark.parametrize(
    ("effect", "verdict"), [("read", Allow), ("idempotent", Ask), ("write", Ask), ("external", Ask)]
)
async def test_by_default_what_only_reads_is_allowed_and_the_rest_asks(effect: Effect, verdict: type) -> None:
    assert isinstance(await ApprovalPolicy().decide(evolve(PROPOSED, effect=effect)), verdict)


@given(
    tools=st.dictionaries(st.sampled_from(["send", "other"]), RULES),
    effects=st.dictionaries(EFFECTS, RULES),
    effect=EFFECTS,
)
def test_the_tools_own_rule_beats_its_effects_rule_beats_the_default(
    tools: dict[str, Rule], effects: dict[Effect, Rule], effect: Effect
) -> None:
    default = "allow" if effect == "read" else "ask"
    wanted = tools.get("send", effects.get(effect, default))
    assert ApprovalPolicy(tools, effects).rule("send", effect) == wanted


@pytest.mark.parametrize(
    ("rule", "remembered", "verdict"),
    [
        ("ask", "", Ask),
        ("ask", "allowed", Allow),
        ("ask", "denied", Deny),
        ("deny", "allowed", Deny),
        ("allow", "denied", Allow),
    ],
)
async def test_what_was_to_be_remembered_answers_a_question_and_changes_no_other_rule(
    rule: Rule, remembered: Any, verdict: type
) -> None:
    policy = ApprovalPolicy({"send": rule})
    assert isinstance(await policy.decide(evolve(PROPOSED, remembered=remembered)), verdict)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": {"send": "maybe"}}, "the rule for 'send' is 'maybe'; it must be one of allow, ask, deny"),
        ({"effects": {"wreck": "deny"}}, "no effect 'wreck'; there are read, idempotent, write, external"),
    ],
)
def test_a_rule_that_does_not_exist_is_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ApprovalPolicy(**options)


def test_the_question_names_the_tool_its_effect_and_its_arguments() -> None:
    assert question(PROPOSED) == 'Run send (external, which reaches outside) with {"to": "ada"}?'


@given(name=st.text(max_size=300), value=st.dictionaries(st.text(max_size=50), st.text(max_size=3000), max_size=3))
def test_any_call_is_asked_about_on_one_bounded_line_that_steers_nothing(name: str, value: dict[str, str]) -> None:
    raw = json.dumps(value)
    asked = question(evolve(PROPOSED, name=name, arguments=raw))
    assert asked.isprintable()
    assert len(asked) <= 10 * (NAME_MAX_CHARS + SHOWN_MAX_CHARS) + 200
    assert ("more characters" in asked) >= (len(json.dumps(value, ensure_ascii=False)) > SHOWN_MAX_CHARS)


async def test_a_session_without_an_approver_reads_and_does_not_write(tmp_path: Path) -> None:
    assert await run_both(tmp_path, approver=False, remember=False) == ["ok", "denied", "denied"]


async def test_an_answer_to_remember_is_obeyed_for_the_same_tool_also_after_a_restart(tmp_path: Path) -> None:
    assert await run_both(tmp_path, approver=True, remember=True) == ["ok", "ok", "ok"]


async def run_both(folder: Path, *, approver: bool, remember: bool) -> list[str]:
    """Read once and write twice, in two openings; answers the first question only. Returns the outcomes."""

    async def look() -> str:
        return "seen"

    async def write() -> str:
        return "written"

    tools = [
        Tool(body=look, description="Look.", effect="read"),
        Tool(body=write, description="Write.", effect="write"),
    ]
    model = FakeModel([calls(("look", {}), ("write", {})), words("Once."), calls(("write", {})), words("Twice.")])
    plugins = [ApprovalPolicy(), Bundle(tools=tools, adapters=[model])]
    for text in ("once", "twice"):
        async with (
            flightlog.open_kernel(folder / "a.db", discover=False, plugins=plugins) as kernel,
            kernel.session("s", model="fake:m", approver=approver) as session,
        ):
            await session.followup(text)
            await session.run(wait=False)
            for asked in session.questions():
                assert text == "once"
                await session.approve(asked.seq, remember=remember)
            await session.run()
            assert kernel.read("s").verify()
    return outcomes_of(folder / "a.db")
