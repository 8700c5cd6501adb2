"""An offline, deterministic model: the embedded default, for demos, tests and first steps.

    scripted:echo                     repeats the last user message
    scripted:say?text=hello           says `text`
    scripted:count?to=300             counts from 1, going on from wherever its count was cut off
        &pace_ms=4                    milliseconds between two deltas
        &chunk=3                      characters per delta
        &note_every=100&note=notes.txt   calls `append_line` each time so many numbers are said, and again
                                          if that call never started

What it says follows from the conversation alone, so a resumed session goes on where it was cut.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl

import trio
from attrs import frozen

from flightlog_hookspecs import (
    Adapter,
    AssistantMessage,
    BlockEnd,
    BlockEvent,
    BlockStart,
    FileBlock,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolResult,
    Usage,
    UserMessage,
    hookimpl,
)
from flightlog_hookspecs.errors import ProviderError

Call = tuple[str, Mapping[str, object]]


@frozen(kw_only=True)
class Reply:
    """What to answer: words, then calls as (tool name, arguments); sent `chunk` characters at a time."""

    text: str
    calls: tuple[Call, ...] = ()
    chunk: int = 5
    pace_ms: float = 0.0


class ScriptedAdapter:
    """Answers from a named script."""

    name = "scripted"

    def encode(self, part: Head | Message) -> bytes:
        """One line of JSON per part."""
        match part:
            case Head():
                value: dict[str, object] = {
                    "model": part.model,
                    "system": part.system,
                    "tools": [t.name for t in part.tools],
                }
                if part.parameters != "{}":
                    value["parameters"] = part.parameters
            case UserMessage():
                value = {"user": part.text} | _files(part)
            case AssistantMessage():
                calls = [[b.call_id, b.name, b.arguments] for b in part.content if isinstance(b, ToolCallBlock)]
                value = {"assistant": part.text, "calls": calls}
            case ToolResult():
                value = {"tool": part.call_id, "outcome": part.outcome, "text": part.text} | _files(part)
        return json.dumps(value).encode() + b"\n"

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Play the script named by the model."""
        script, _, query = request.head.model.partition("?")
        try:
            play, known = _SCRIPTS[script]
        except KeyError:
            raise ProviderError(
                "bad_request", f"no script {script!r}; there are {', '.join(sorted(_SCRIPTS))}"
            ) from None
        try:
            reply = play(request.messages, _options(query, known))
        except ValueError as error:
            raise ProviderError("bad_request", f"{request.head.model!r}: {error}") from None
        yield _played(reply, len(request.messages), sum(map(len, request.fragments)))


def _files(part: UserMessage | ToolResult) -> dict[str, object]:
    """What the files of a message are, if it has any."""
    files = [[block.label, block.sha256] for block in part.content if isinstance(block, FileBlock)]
    return {"files": files} if files else {}


def _options(query: str, known: Sequence[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, strict_parsing=bool(query)))
    if unknown := next((name for name in options if name not in known), ""):
        raise ValueError(f"there is no option {unknown!r} (there are {', '.join(known) or 'none'})")
    return options


async def _played(reply: Reply, request_messages: int, request_bytes: int) -> AsyncIterator[BlockEvent]:
    said = 0
    if reply.text:
        yield BlockStart(index=0, type="text")
        for start in range(0, len(reply.text), reply.chunk):
            await trio.sleep(reply.pace_ms / 1000)
            yield TextDelta(index=0, text=reply.text[start : start + reply.chunk])
            said += 1
        yield BlockEnd(index=0, block=TextBlock(text=reply.text))
    for index, (name, arguments) in enumerate(reply.calls, 1):
        # Unique in its session: a real model that takes over may insist on that.
        call_id, raw = f"call_{request_messages}_{index}", json.dumps(arguments)
        yield BlockStart(index=index, type="tool_call", call_id=call_id, name=name)
        yield ToolCallDelta(index=index, text=raw)
        yield BlockEnd(index=index, block=ToolCallBlock(call_id=call_id, name=name, arguments=raw))
    yield Usage(input_tokens=request_bytes // 4, output_tokens=said)
    yield Finish(reason="tool_calls" if reply.calls else "stop")


def _echo(messages: Sequence[Message], options: dict[str, str]) -> Reply:
    last = next((m.text for m in reversed(messages) if isinstance(m, UserMessage)), "")
    return Reply(text=last or "(nothing to repeat)")


def _say(messages: Sequence[Message], options: dict[str, str]) -> Reply:
    return Reply(text=options.get("text", "hello"))


def _count(messages: Sequence[Message], options: dict[str, str]) -> Reply:
    to, every = int(options.get("to", "10")), int(options.get("note_every", "0"))
    if to < 1 or every < 0:
        raise ValueError("count needs to >= 1 and note_every >= 0")
    whole = _numbers(to)
    said = _said([message for message in messages if isinstance(message, AssistantMessage)])
    pace_ms, chunk = float(options.get("pace_ms", "0")), max(1, int(options.get("chunk", "3")))
    if every:
        reached = whole[:said].count("\n")
        due = [*range(every, reached + 1, every), *([to] if reached == to and to % every else [])]
        if missing := _unnoted(messages, options, due):
            return Reply(text="", calls=missing)
    if said >= len(whole):
        return Reply(text=f"Counted to {to}.", chunk=chunk, pace_ms=pace_ms)
    if not every:
        return Reply(text=whole[said:], chunk=chunk, pace_ms=pace_ms)
    # Say up to the next multiple of `every` that is still unsaid, then note it down.
    stop = min((whole[:said].count("\n") // every + 1) * every, to)
    text = whole[said : len(_numbers(stop))]
    return Reply(text=text, calls=(_note(options, stop),), chunk=chunk, pace_ms=pace_ms)


def _numbers(to: int) -> str:
    return "".join(f"{number}\n" for number in range(1, to + 1))


def _said(answers: Sequence[AssistantMessage]) -> int:
    """How many characters of the count stand in `answers`: of those that go on with it, not of any others."""
    most = sum(len(answer.text) for answer in answers)
    count, said = _numbers(most // 2 + 1), 0
    for answer in answers:
        if count.startswith(answer.text, said) and (answer.interrupted or answer.text.endswith("\n")):
            said += len(answer.text)
    return said


def _note(options: dict[str, str], number: int) -> Call:
    return "append_line", {"path": options.get("note", "notes.txt"), "line": f"counted to {number}"}


def _unnoted(messages: Sequence[Message], options: dict[str, str], numbers: Sequence[int]) -> tuple[Call, ...]:
    """The notes of `numbers` for which no call was made, or none that started."""
    asked: list[ToolCallBlock] = []
    made: set[str] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked = [block for block in message.content if isinstance(block, ToolCallBlock)]
        elif isinstance(message, ToolResult):
            call = asked.pop(0)
            if message.outcome not in ("not_started", "aborted"):
                made.add(call.arguments)
    notes = [_note(options, number) for number in numbers]
    return tuple(note for note in notes if json.dumps(note[1]) not in made)


_SCRIPTS: Mapping[str, tuple[Callable[[Sequence[Message], dict[str, str]], Reply], tuple[str, ...]]] = {
    "echo": (_echo, ()),
    "say": (_say, ("text",)),
    "count": (_count, ("to", "pace_ms", "chunk", "note_every", "note")),
}
"""The scripts by name, each with the options that it has."""


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer the scripted model."""
    register(ScriptedAdapter())
