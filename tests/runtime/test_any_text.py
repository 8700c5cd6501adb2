"""Any text that a plugin can give, halves of characters side by side included: taken, or refused before an effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flightlog.core.canonical import paired
from flightlog.runtime.plugins import load_plugins
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    Append,
    Arguments,
    Ask,
    BlockEnd,
    BlockStart,
    Compactor,
    Continue,
    Deny,
    Done,
    Fail,
    FileBlock,
    Finish,
    Hook,
    Missing,
    PromptSection,
    Replace,
    Service,
    Switch,
    ThinkingBlock,
    Tool,
    ToolCallBlock,
    ToolOutput,
    Veto,
)
from flightlog_hookspecs.errors import OutcomeUnknown, PluginError, ProviderError, ToolError
from flightlog_hookspecs.events import AssistantMessage, PluginFault, ToolResult
from support.kernels import events_of, session_of, verified
from support.memory_folder import subfolder
from support.places import PLACES, reached

PAIR = "x \ud83d\ude00 y"
TEXTS = st.text(st.one_of(st.sampled_from("a\0\ud83d\ude00"), st.characters(codec=None)), max_size=12)
ANY = settings(
    max_examples=max(3, settings.default.max_examples // 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def raising(error: type[Exception]) -> Callable[[str], object]:
    def answer(text: str) -> object:
        raise error(text)

    return answer


def failing(text: str) -> object:
    raise ProviderError("server", text)


GIVEN: list[tuple[str, Callable[[str], object]]] = [
    *((place, raising(ValueError)) for place in PLACES),
    ("tool, sync", raising(ToolError)),
    ("tool, sync", raising(OutcomeUnknown)),
    ("tool, sync", str),
    ("tool, sync", lambda text: {text: [text]}),
    ("tool, sync", lambda text: ToolOutput(content=text, facts={"it": text})),
    ("tool, sync", lambda text: ToolOutput(content="", facts={text: "it"})),
    ("tool, sync", lambda text: ToolOutput(content=(FileBlock.of(b"x", name=text, media_type="a/b"),))),
    ("tool, sync", lambda text: ToolOutput(content=(FileBlock.of(b"x", name="x", media_type=f"a/{text}"),))),
    ("precheck, sync", raising(ToolError)),
    ("precheck, sync", str),
    ("reconcile, sync", Done),
    ("section, sync", str),
    ("goal check, sync", Missing),
    ("adapter", failing),
    ("before_step, sync", Veto),
    ("before_step, sync", Append),
    ("before_step, sync", lambda text: Switch(f"fake:{text}")),
    ("before_request, sync", Veto),
    ("before_tool, sync", Deny),
    ("before_tool, sync", Ask),
    ("before_tool, sync", Arguments),
    ("before_tool, sync", lambda text: Arguments(f'{{"a":"{text}"}}')),
    ("after_tool, sync", Append),
    ("after_tool, sync", lambda text: Replace(ToolOutput(content=text))),
    ("on_request_error, sync", lambda text: Switch(f"fake:{text}")),
    ("turn_stopping, sync", Continue),
    ("turn_stopping, sync", lambda text: Fail(text, text)),
]


@pytest.mark.parametrize(("place", "answer"), GIVEN, ids=lambda part: part if isinstance(part, str) else "")
@ANY
@example(PAIR)
@given(text=TEXTS)
def test_any_text_is_one_answer_or_one_failed_call(
    tmp_path: Path, place: str, answer: Callable[[str], object], text: str
) -> None:
    outcome = trio.run(reached, subfolder(tmp_path) / "a.db", place, lambda: answer(text))
    if place.startswith(("after_tool", "section", "turn_stopping", "event_committed")):
        assert outcome in ("ok", "")


@ANY
@example(PAIR)
@given(text=TEXTS)
def test_any_text_that_a_model_streams_is_a_message_or_a_failed_attempt(tmp_path: Path, text: str) -> None:
    path = subfolder(tmp_path) / "a.db"
    call = ToolCallBlock(call_id=text, name=text, arguments=text)
    thinking = ThinkingBlock(text=text, replay=text)
    reply = [
        BlockStart(index=0, type="thinking"),
        BlockEnd(index=0, block=thinking),
        BlockStart(index=1, type="tool_call"),
        BlockEnd(index=1, block=call),
        Finish(reason="tool_calls", replay=text),
    ]
    model = FakeModel([reply, words(PAIR, chunk=3)])

    async def turn() -> None:
        async with session_of(path, model) as session:
            await session.followup("go")
            assert (await session.run()).text == paired(PAIR)

    trio.run(turn)
    message = events_of(path, AssistantMessage)[0]
    assert message.replay == paired(text)
    assert message.content[0] == ThinkingBlock(text=paired(text), replay=paired(text))
    assert [result.name for result in events_of(path, ToolResult)] == [paired(text)]
    verified(path, model)


async def test_a_secret_in_halves_is_seen_by_the_redactions(tmp_path: Path) -> None:
    from flightlog_hookspecs import Redaction

    whole = paired(PAIR)
    hides = Bundle(redactions=[Redaction(name="hides", body=lambda text: text.replace(whole, "***"))])
    tool = Tool(body=lambda: PAIR, name="tell", description="Tell.", parameters={"type": "object"}, effect="read")
    model = FakeModel([calls(("tell", {})), words("Fine.")])
    async with session_of(tmp_path / "a.db", model, tool, plugins=[hides]) as session:
        await session.followup("go")
        await session.run()
    assert [result.text for result in events_of(tmp_path / "a.db", ToolResult)] == ["***"]


def no_lifespan(_: object) -> None: ...


@pytest.mark.parametrize(
    "plugin",
    [
        Bundle(hooks=[Hook(point="before_step", body=lambda _: None, name=PAIR)]),
        Bundle(sections=[PromptSection(name=PAIR, rank=1, kind="static", render=lambda: "")]),
        Bundle(services=[Service(name=PAIR, lifespan=no_lifespan)]),  # type: ignore[arg-type]
        Bundle(adapters=[FakeModel([], name=PAIR)]),
        Bundle(compactors=[Compactor(name="it", instruction=PAIR)]),
        Bundle(compactors=[Compactor(name="it", note=PAIR)]),
        Bundle(tools=[Tool(body=lambda context: "", name="it", effect="transactional", database=PAIR)]),
    ],
    ids=["hook", "section", "service", "adapter", "instruction", "note", "database"],
)
def test_a_name_in_halves_is_refused_as_it_is_registered(plugin: Bundle) -> None:
    with pytest.raises(PluginError, match="registration"):
        load_plugins(discover=False, plugins=[plugin])


async def test_what_a_plugin_calls_itself_and_its_tools_is_made_whole(tmp_path: Path) -> None:
    class Named(Bundle):
        __name__ = __version__ = PAIR

    tool = Tool(body=lambda: "", name="tell", description=PAIR, parameters={"type": "object", "title": PAIR})
    model = FakeModel([words("Fine.")])
    failing = Hook(point="before_step", body=lambda _: 5, name="it")
    async with session_of(tmp_path / "a.db", model, plugins=[Named(tools=[tool], hooks=[failing])]) as session:
        await session.followup("go")
        await session.run()
    (fault,) = events_of(tmp_path / "a.db", PluginFault)
    assert fault.plugin == paired(PAIR)
