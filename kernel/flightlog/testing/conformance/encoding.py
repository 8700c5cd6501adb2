"""Rules of what is sent: always the same bytes for the same part, made of the fragments alone, never rewritten."""

from __future__ import annotations

import re
from copy import deepcopy
from itertools import pairwise
from typing import Final

from attrs import evolve, frozen

from flightlog.testing.conformance.bench import HELLO, LOOK, Bench, told
from flightlog_hookspecs import (
    Adapter,
    AssistantMessage,
    FileBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResult,
    UserMessage,
)
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.tools import Outcome

NAME: Final = "the name is what stands before the colon"
PURE: Final = "encode is pure and deterministic"
FRAGMENTS: Final = "what is sent is made of the fragments alone"
APPEND_ONLY: Final = "what was sent is never rewritten"

ODD_WORDS: Final = ("", " ", "\n", "two\nlines\tand a tab", '{"a": 1}', "\ud800", "\x00", "l\u00f6k \U0001f30d")


def _user(words: str) -> UserMessage:
    return UserMessage(message_id="m", content=text_blocks(words))


def _result(call: ToolCallBlock, position: int, words: str = "seen") -> ToolResult:
    return ToolResult(
        position=position, call_id=call.call_id, name=call.name, message_seq=1, outcome="ok", content=text_blocks(words)
    )


_CALLS: Final = (
    ToolCallBlock(call_id="call_1", name="look", arguments='{"where": "up"}'),
    ToolCallBlock(call_id="functions.look:2", name="look", arguments='{"where": "u'),
)
_ELSEWHERE: Final = AssistantMessage(
    attempt=1,
    finish="tool_calls",
    content=(
        ThinkingBlock(text="Hm.", replay='{"by":"somebody else"}'),
        TextBlock(text="I look."),
        *_CALLS,
    ),
)
"""An answer of another provider: sessions go from one to the next."""
_RESULTS: Final = tuple(_result(call, position) for position, call in enumerate(_CALLS))


_FILES: Final = (
    TextBlock(text="see"),
    FileBlock.of(b"\x89PNG\r\n\x1a\n", name="cat.png"),
    FileBlock.of(b"%PDF-1.7", name="report.pdf"),
    FileBlock.of(b"some words", name="notes.txt"),
    FileBlock.of(b"?", media_type="application/octet-stream"),
)


def _parts(bench: Bench) -> list[object]:
    outcomes: tuple[Outcome, ...] = ("ok", "error", "denied", "unknown")
    return [
        bench.head,
        evolve(bench.head, system="", tools=()),
        evolve(bench.head, tools=(LOOK, evolve(LOOK, name="peek"))),
        *map(_user, ODD_WORDS),
        *(AssistantMessage(attempt=1, finish="stop", content=(TextBlock(text=f"x{words}"),)) for words in ODD_WORDS),
        AssistantMessage(attempt=1, finish="interrupted", content=(TextBlock(text="I was c"),)),
        _ELSEWHERE,
        *_RESULTS,
        evolve(_user("see"), content=_FILES),
        *(evolve(_RESULTS[0], content=_FILES, outcome=outcome) for outcome in outcomes),
        *(evolve(_result(_CALLS[0], 0, words), outcome=outcome) for words in ODD_WORDS for outcome in outcomes),
    ]


async def named(bench: Bench) -> None:
    """The adapter is one, and has its name."""
    if not isinstance(bench.adapter, Adapter):
        raise bench.broken(NAME, "an adapter has name, encode and stream")
    if bench.adapter.name != bench.case.name or not bench.case.name or ":" in bench.case.name:
        raise bench.broken(NAME, f"it is {bench.adapter.name!r}, not {bench.case.name!r}")


async def encoded(bench: Bench) -> None:
    """`encode` gives the same bytes for the same part, whatever came before, and changes nothing."""
    parts = _parts(bench)
    before = deepcopy(parts)
    first = [_fragment(bench, bench.adapter, part) for part in parts]
    others = (
        ("in another order", bench.adapter, parts),
        ("as a copy", bench.adapter, before),
        ("by another instance", bench.case.adapter(bench.server.url), parts),
    )
    for how, adapter, given in others:
        again = [_fragment(bench, adapter, part) for part in reversed(given)][::-1]
        for part, one, other in zip(parts, first, again, strict=True):
            if one != other:
                raise bench.broken(PURE, f"{part} became {one!r}, and {how} {other!r}")
    for part, unchanged in zip(parts, before, strict=True):
        if part != unchanged:
            raise bench.broken(PURE, f"{unchanged} was changed to {part}")


def _fragment(bench: Bench, adapter: Adapter, part: object) -> bytes:
    try:
        fragment: object = adapter.encode(part)  # type: ignore[arg-type]
    except Exception as error:
        raise bench.broken(PURE, f"{part} cannot be encoded: {type(error).__name__}: {error}") from error
    if type(fragment) is not bytes:
        raise bench.broken(PURE, f"{part} became {type(fragment).__name__}, not bytes")
    return fragment


@frozen
class _Sent:
    """The body of a request, and the last words of the last answer in it."""

    body: bytes
    last_words: bytes


async def sent(bench: Bench) -> None:
    """A conversation through all answers, and the first again: each body by the fixed rule, and going on as it was."""
    answers = [recording for recording in bench.case.recordings if recording.failure is None]
    messages: list[Message] = [HELLO, _ELSEWHERE, *_RESULTS]
    bodies: list[_Sent] = []
    last_words = _last_words(_ELSEWHERE)
    for number, recording in enumerate([*answers, answers[0]]):
        bench.recording = recording.name
        messages.append(_user(f"question {number}"))
        request = bench.request(*messages)
        outcome = await bench.attempt(told(recording), request=request)
        body = bench.server.asked[-1].raw
        _made_of_fragments(bench, body, request.fragments)
        bodies.append(_Sent(body, last_words))
        foreign = evolve(
            request, messages=[_user("other words")] * len(messages), head=evolve(request.head, system="x")
        )
        await bench.attempt(told(recording), request=foreign)
        if bench.server.asked[-1].raw != body:
            raise bench.broken(FRAGMENTS, "the same fragments became another body with other messages beside them")
        if (answer := outcome.message) is None:
            raise bench.broken(FRAGMENTS, f"a conversation that goes on came to {outcome.failure}")
        calls = [block for block in answer.content if isinstance(block, ToolCallBlock)]
        messages += [answer, *(_result(call, position) for position, call in enumerate(calls))]
        last_words = _last_words(answer) or last_words
    for shorter, longer in pairwise(bodies):
        at = shorter.body.rfind(shorter.last_words)
        if at < 0:
            raise bench.broken(APPEND_ONLY, f"an answer's words {shorter.last_words!r} were not sent back")
        end = at + len(shorter.last_words)
        if shorter.body[:end] != longer.body[:end]:
            differs = next(i for i in range(end) if shorter.body[i : i + 1] != longer.body[i : i + 1])
            seen, now = (sent.body[max(0, differs - 20) : differs + 40] for sent in (shorter, longer))
            raise bench.broken(APPEND_ONLY, f"from byte {differs} on, {seen!r} became {now!r} in the next request")


def _made_of_fragments(bench: Bench, body: bytes, fragments: object) -> None:
    parts: list[bytes] = list(fragments)  # type: ignore[call-overload]
    if bench.case.body is not None:
        if body != bench.case.body(parts):
            raise bench.broken(FRAGMENTS, "the body is not what the fixed rule makes of them")
        return
    at = 0
    for number, part in enumerate(parts):
        found = body.find(part, at)
        if found < 0:
            raise bench.broken(FRAGMENTS, f"fragment {number} does not stand in the body as it is, behind those before")
        at = found + len(part)


def _last_words(answer: AssistantMessage) -> bytes:
    """A run of plain words near the end of `answer`, which stands in a body however that escapes the rest."""
    runs = re.findall(r"[A-Za-z0-9 ]{2,}", answer.text)
    return runs[-1].encode() if runs else b""
