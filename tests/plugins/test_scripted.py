"""The scripted model: says what its name asks for, and goes on from wherever the conversation was cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog_hookspecs import (
    AssistantMessage,
    BlockEnd,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolResult,
    UserMessage,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins import files, scripted
from flightlog_plugins.scripted import ScriptedAdapter


def said(text: str, *calls: ToolCallBlock, cut: bool = False) -> AssistantMessage:
    """An answer."""
    content = (*([TextBlock(text=text)] if text else []), *calls)
    return AssistantMessage(attempt=1, content=content, finish="interrupted" if cut else "stop")


def user(text: str = "count") -> UserMessage:
    """A message."""
    return UserMessage(message_id="m", content=(TextBlock(text=text),))


async def answer(model: str, messages: list[Message]) -> tuple[str, list[ToolCallBlock], list[str]]:
    """What the script says to `messages`: text, calls, and the deltas of the text."""
    adapter = ScriptedAdapter()
    head = Head(adapter="scripted", model=model)
    fragments = [adapter.encode(part) for part in (head, *messages)]
    text, calls, deltas = "", [], []
    finish = None
    async with adapter.stream(Request(head=head, messages=messages, fragments=fragments), 1) as events:
        async for event in events:
            match event:
                case TextDelta(text=piece):
                    deltas.append(piece)
                case BlockEnd(block=TextBlock(text=words)):
                    text = words
                case BlockEnd(block=ToolCallBlock() as call):
                    calls.append(call)
                case Finish(reason=finish):
                    pass
    assert finish == ("tool_calls" if calls else "stop")
    assert "".join(deltas) == text
    return text, calls, deltas


def counted(to: int) -> str:
    """The whole count."""
    return "".join(f"{number}\n" for number in range(1, to + 1))


@given(to=st.integers(1, 120), cuts=st.lists(st.integers(1, 60), max_size=5), chunk=st.integers(1, 9))
async def test_the_count_goes_on_from_any_cut_of_its_text(to: int, cuts: list[int], chunk: int) -> None:
    messages: list[Message] = [user()]
    model = f"count?to={to}&chunk={chunk}"
    for length in cuts:
        text, _, _ = await answer(model, messages)
        if text.startswith("Counted"):
            break
        messages += [said(text[:length], cut=True), user("go on")]
    text, _, deltas = await answer(model, messages)
    whole = "".join(m.text for m in messages if isinstance(m, AssistantMessage))
    if whole == counted(to):
        assert text == f"Counted to {to}."
    else:
        assert whole + text == counted(to)
    assert all(len(delta) <= chunk for delta in deltas)


@pytest.mark.parametrize("other", ["hello", "5", "1", "12\n", "2\n3\n", "Counted to 3.", ""])
@pytest.mark.parametrize("note", ["", "&note_every=3"])
async def test_answers_that_were_no_count_are_no_part_of_it(other: str, note: str) -> None:
    before, model = [user(), said(other), user()], f"count?to=3{note}"
    assert (await answer(model, before))[0] == counted(3)
    cut = [*before, said("1\n2", cut=True), user(), said(other), user()]
    assert (await answer(model, cut))[0] == "\n3\n"


@given(
    to=st.integers(1, 40),
    every=st.integers(1, 15),
    fates=st.lists(st.sampled_from(["ok", "unknown", "not_started", "cut", "cut at the end"]), max_size=12),
)
async def test_every_note_is_made_once_whatever_becomes_of_its_call(to: int, every: int, fates: list[str]) -> None:
    """A cut between the words and the call, a call that never started: the note is still owed."""
    messages: list[Message] = [user()]
    made: list[str] = []
    model = f"count?to={to}&note_every={every}"
    for fate in [*fates, *["ok"] * 100]:
        text, calls, _ = await answer(model, messages)
        if text.startswith("Counted"):
            break
        if fate.startswith("cut") and text:
            kept = text if fate == "cut at the end" else text[: len(text) // 2] or text
            messages += [said(kept, cut=True), user("go on")]
            continue
        outcome = "ok" if fate.startswith("cut") else fate
        messages.append(said(text, *calls))
        for position, call in enumerate(calls):
            content = (TextBlock(text=outcome),)
            messages.append(
                ToolResult(
                    position=position,
                    call_id=call.call_id,
                    name=call.name,
                    message_seq=1,
                    outcome=outcome,
                    content=content,
                )
            )
            if outcome in ("ok", "unknown"):
                made.append(call.arguments)
    words = "".join(message.text for message in messages if isinstance(message, AssistantMessage))
    assert words == counted(to)
    stops = [*range(every, to + 1, every), *([to] if to % every else [])]
    assert sorted(made) == sorted(f'{{"path": "notes.txt", "line": "counted to {stop}"}}' for stop in stops)


async def test_echo_repeats_the_last_message_and_say_says_its_text() -> None:
    assert (await answer("echo", [user("first"), said("x"), user("second")]))[0] == "second"
    assert (await answer("echo", []))[0]
    assert (await answer("say?text=good%20day", [user()]))[0] == "good day"
    assert (await answer("say", [user()]))[0] == "hello"


@pytest.mark.parametrize(
    "model", ["nothing", "count?to=0", "count?to=x", "count?note_every=-1", "count?to", "count?pace_ms=slow", ""]
)
async def test_a_script_that_makes_no_sense_is_a_bad_request(model: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(model, [user()])
    assert caught.value.kind == "bad_request"
    assert caught.value.retryable is False


async def test_the_pace_is_kept_between_the_deltas(autojump_clock: object) -> None:
    start = trio.current_time()
    _, _, deltas = await answer("count?to=10&pace_ms=100&chunk=1", [user()])
    assert trio.current_time() - start == pytest.approx(len(deltas) * 0.1)


async def test_a_session_on_it_counts_notes_and_goes_on_after_a_cancel(tmp_path: Path, autojump_clock: object) -> None:
    path = tmp_path / "a.db"
    model = "scripted:count?to=30&note_every=10&pace_ms=100&chunk=2"
    async with flightlog.open_kernel(path, discover=False, plugins=[scripted, QUICK], workspace=tmp_path) as kernel:
        async with kernel.session("s", model=model, limits=Limits(delta_flush_ms=1)) as session:
            await session.followup("count")
            with trio.move_on_after(2.05):
                await session.run()
            await session.followup("go on")
            turn = await session.run()
            assert (turn.reason, turn.text) == ("completed", "Counted to 30.")
        messages = kernel.read("s").messages()
        words = "".join(message.text for message in messages if isinstance(message, AssistantMessage))
        assert words == counted(30) + "Counted to 30."
        assert kernel.read("s").verify()
    assert (tmp_path / "notes.txt").read_text() == "counted to 10\ncounted to 20\ncounted to 30\n"


class _Quick:
    """The files plugin with an async body: a mock clock does not wait for threads."""

    @flightlog.hookimpl
    def register_tools(self, register: object) -> None:
        from attrs import evolve

        async def append_line(context: object, path: str, line: str) -> str:
            await trio.lowlevel.checkpoint()
            return files.append_line.body(context, path, line)

        schema = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "string"}}}
        register(evolve(files.append_line, body=append_line, parameters=schema, description="Append a line."))


QUICK = _Quick()
