"""What prompt sections tell a model: once, again when it changes, and never by rewriting what was sent."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightlog import Session, tool
from flightlog.core.context import given as texts_given
from flightlog.errors import PluginError
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import PromptSection, StepView
from flightlog_hookspecs.events import PluginFault, RequestHeader, UserMessage
from support.kernels import events_of, opened, session_of, verified
from support.memory_folder import subfolder


@tool(effect="read", mode="parallel")
def look() -> str:
    """Look."""
    return "blue"


class Said:
    """A section whose text a test sets."""

    def __init__(self, text: str = "", *, name: str = "weather", kind: str = "runtime", rank: int = 1) -> None:
        self.text = text
        self.rendered = 0
        self.section = PromptSection(name=name, rank=rank, render=self.render, kind=kind)

    async def render(self) -> str:
        self.rendered += 1
        return self.text


def told(path: Path) -> list[tuple[str, str]]:
    """What messages said of sections: (section, words)."""
    return [(event.section, event.text) for event in events_of(path, UserMessage) if event.section]


async def turn(session: Session, text: str = "hi") -> None:
    await session.followup(text)
    ended = await session.run()
    assert ended is not None
    assert ended.reason == "completed"


async def test_the_same_runtime_context_over_ten_steps_is_sent_once(tmp_path: Path) -> None:
    weather = Said("sunny")
    model = FakeModel([*[calls(("look", {}))] * 9, words("done")])
    async with session_of(tmp_path / "a.db", model, look, sections=[weather.section]) as session:
        await turn(session)
    assert weather.rendered == 10
    assert told(tmp_path / "a.db") == [("weather", "The context 'weather' is now:\nsunny")]
    assert b"sunny" not in model.requests[0][0], "it is not part of the head"
    assert verified(tmp_path / "a.db", model)


async def test_runtime_context_that_changes_within_a_turn_is_sent_in_the_next_step(tmp_path: Path) -> None:
    weather = Said("sunny")
    model = FakeModel([calls(("look", {})), words("done")])
    async with session_of(tmp_path / "a.db", model, look, sections=[weather.section]) as session:
        session._journal.on_boundary = lambda name, session, seq: (
            setattr(weather, "text", "rain") if name == "tool" else None
        )
        await turn(session)
    assert [text.rpartition("\n")[2] for _, text in told(tmp_path / "a.db")] == ["sunny", "rain"]
    before, after = model.requests
    assert after[: len(before)] == before


async def test_context_that_is_gone_is_said_to_be_gone_once(tmp_path: Path) -> None:
    path, weather = tmp_path / "a.db", Said("sunny")
    model = FakeModel([])
    async with session_of(path, model, sections=[weather.section]) as session:
        await turn(session)
        weather.text = ""
        await turn(session)
        await turn(session)
    async with session_of(path, model) as session:  # and its plugin is gone
        await turn(session)
    assert told(path)[1:] == [("weather", "The context 'weather' no longer applies.")]


async def test_a_section_whose_plugin_is_gone_no_longer_applies(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sections = [Said("sunny").section, Said("Be brief.", name="rules", kind="static").section]
    model = FakeModel([])
    async with session_of(path, model, sections=sections) as session:
        await turn(session)
    for _ in range(2):
        async with session_of(path, model) as session:
            await turn(session)
    assert sorted(told(path)[1:]) == [
        ("rules", "The context 'rules' no longer applies."),
        ("weather", "The context 'weather' no longer applies."),
    ]


async def test_a_changed_static_section_is_appended_at_the_next_turn_and_the_head_stays(tmp_path: Path) -> None:
    path, rules = tmp_path / "a.db", Said("Be brief.", name="rules", kind="static")
    model = FakeModel([calls(("look", {})), words("one"), calls(("look", {})), words("two")])
    async with session_of(path, model, look, sections=[rules.section]) as session:
        await turn(session)
        assert rules.rendered == 1
        rules.text = "Be kind."
        await turn(session)
        await turn(session)
    assert [event.reason for event in events_of(path, RequestHeader)] == ["first"]
    assert told(path) == [("rules", "The context 'rules' is now:\nBe kind.")]
    for before, after in pairwise(model.requests):
        assert after[: len(before)] == before, "what was sent is never rewritten"
    assert verified(path, model)


async def test_a_new_head_says_what_sections_say_then_and_an_older_message_does_not_overrule_it(tmp_path: Path) -> None:
    path, rules = tmp_path / "a.db", Said("one", name="rules", kind="static")
    model = FakeModel([])
    async with opened(path, model, sections=[rules.section]) as kernel, kernel.session("s", model="fake:m") as session:
        await turn(session)
        rules.text = "two"
        await turn(session)
        rules.text = "three"
        registration = kernel.register(Bundle(tools=[look]))
        await turn(session)
        assert kernel.read("s").request(3, 1).head.system == "three"
        await turn(session)
        assert not registration.closed
    assert [text.rpartition("\n")[2] for _, text in told(path)] == ["two", "three"]
    assert [event.reason for event in events_of(path, RequestHeader)] == ["first", "tools"]
    assert verified(path, model)


async def test_a_session_opened_again_is_not_told_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sections = [Said("sunny").section, Said("Be brief.", name="rules", kind="static").section]
    for _ in range(3):
        async with session_of(path, FakeModel([]), sections=sections) as session:
            await turn(session)
    assert len(told(path)) == 1
    assert len(events_of(path, RequestHeader)) == 1


async def test_another_system_text_of_the_host_is_told_and_none_keeps_the_last(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([])
    for system in ("Be brief.", None, "Be kind.", None, ""):
        async with opened(path, model) as kernel, kernel.session("s", model="fake:m", system=system) as session:
            await turn(session)
    assert told(path) == [
        ("system", "The context 'system' is now:\nBe kind."),
        ("system", "The context 'system' no longer applies."),
    ]


async def test_a_session_goes_on_with_its_last_model_unless_another_is_named(tmp_path: Path) -> None:
    path, models = tmp_path / "a.db", [FakeModel([]), FakeModel([], name="other")]
    for model in ("fake:m", None, "other:n", None):
        async with opened(path, models) as kernel, kernel.session("s", model=model) as session:
            await turn(session)
    assert [len(model.requests) for model in models] == [2, 2]


@pytest.mark.parametrize("kind", ["static", "runtime"])
@pytest.mark.parametrize(
    "wrong", [ValueError("no"), SystemExit(1), "hangs", 5], ids=["raises", "exits", "hangs", "int"]
)
async def test_a_section_that_fails_is_recorded_and_keeps_what_it_said_last(
    tmp_path: Path, kind: str, wrong: object, autojump_clock: trio.testing.MockClock
) -> None:
    path, broken = tmp_path / "a.db", list[bool]()

    async def render() -> object:
        if not broken:
            return "Fine."
        if wrong == "hangs":
            await trio.sleep_forever()
        if isinstance(wrong, BaseException):
            raise wrong
        return wrong

    section = PromptSection(name="moody", rank=1, render=render, kind=kind)  # type: ignore[arg-type]
    other = Said("sunny")
    async with session_of(path, FakeModel([]), sections=[section, other.section]) as session:
        await turn(session)
        broken.append(True)
        other.text = "rain"
        await turn(session)
        state = session._journal.state
        assert texts_given(state)["moody"] == "Fine."
        assert texts_given(state)["weather"] == "rain"
    (fault,) = events_of(path, PluginFault)
    assert (fault.plugin, fault.hook) == ("Bundle", "render moody")


async def test_a_plain_function_renders_too(tmp_path: Path) -> None:
    section = PromptSection(name="plain", rank=1, render=lambda: "Plainly.", kind="runtime")
    async with session_of(tmp_path / "a.db", FakeModel([]), sections=[section]) as session:
        await turn(session)
    assert told(tmp_path / "a.db") == [("plain", "The context 'plain' is now:\nPlainly.")]


@pytest.mark.parametrize("kind", ["static", "runtime"])
async def test_a_section_that_wants_it_is_given_the_step_with_what_was_just_said(tmp_path: Path, kind: str) -> None:
    seen: list[tuple[str, int, int, str, str]] = []

    def render(view: StepView, unused: str = "") -> str:
        last = view.messages[-1]
        seen.append((view.session, view.turn, view.step, view.model, last.text))
        return f"You just heard {last.text}."

    section = PromptSection(name="echo", rank=1, render=render, kind=kind)  # type: ignore[arg-type]
    async with session_of(tmp_path / "a.db", FakeModel([]), sections=[section]) as session:
        await turn(session, "one")
        await turn(session, "two")
    assert seen == [("s", 1, 1, "fake:m", "one"), ("s", 2, 1, "fake:m", "two")]
    assert told(tmp_path / "a.db")[-1] == ("echo", "The context 'echo' is now:\nYou just heard two.")


@pytest.mark.parametrize(
    "section",
    [
        PromptSection(name="system", rank=1, render=str),
        PromptSection(name="", rank=1, render=str),
        PromptSection(name="x", rank=1, render=str, kind="other"),  # type: ignore[arg-type]
        PromptSection(name="x", rank=1, render=str, limit_s=0),
        PromptSection(name="x", rank=1, render=lambda view, more: ""),  # type: ignore[misc,arg-type]
    ],
    ids=["the host's name", "no name", "no such kind", "no time", "asks too much"],
)
async def test_a_section_that_cannot_work_is_refused_at_registration(tmp_path: Path, section: PromptSection) -> None:
    with pytest.raises(PluginError, match="prompt section"):
        async with opened(tmp_path / "a.db", FakeModel([]), sections=[section]):
            pass


TEXTS = st.sampled_from(["", "a", "b\n\nb", "The context 'static' no longer applies."])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.tuples(TEXTS, TEXTS, st.booleans(), st.booleans()), min_size=1, max_size=6),
)
def test_what_the_model_was_given_last_is_what_sections_say_and_nothing_sent_changes(
    tmp_path: Path, turns: list[tuple[str, str, bool, bool]]
) -> None:
    """`turns` are (static text, runtime text, whether to reopen first, whether tools change)."""

    async def main(path: Path) -> None:
        static, runtime = Said(name="static", kind="static"), Said(name="runtime")
        model, tools = FakeModel([]), list[bool]()
        bundle = [static.section, runtime.section]
        remaining = list(turns)
        while remaining:
            async with (
                opened(path, model, *([look] if len(tools) % 2 else []), sections=bundle) as kernel,
                kernel.session("s", model="fake:m", system="host") as session,
            ):
                while remaining:
                    static.text, runtime.text, reopen, other_tools = remaining.pop(0)
                    await turn(session)
                    given_now = {name: text for name, text in texts_given(session._journal.state).items() if text}
                    wanted = {"system": "host", "static": static.text, "runtime": runtime.text}
                    assert given_now == {name: text for name, text in wanted.items() if text}
                    tools += [True] * other_tools
                    if reopen or other_tools:
                        break
        for before, after in pairwise(model.requests):
            assert after[1 : len(before)] == before[1:]
        assert verified(path, model)

    trio.run(main, subfolder(tmp_path) / "a.db")
