"""Every shape of stream that the providers are known to send, as recordings for the suite."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from flightlog.testing.conformance import AdapterCase, Frame, Recording
from flightlog_hookspecs import Adapter, FinishReason, TextBlock, ThinkingBlock, ToolCallBlock, Usage
from support.wire_providers import ANTHROPIC, CHAT, DEEPSEEK, RESPONSES, Provider
from support.wire_server import sse

Event = dict[str, Any]

THOUGHT = ThinkingBlock(text="Where shall I look?")
LOOKS = TextBlock(text="I will lök twice 🌍.")
CALLS = (
    ToolCallBlock(call_id="", name="look", arguments='{"where": "up"}'),
    ToolCallBlock(call_id="", name="look", arguments="{}"),
)
HI = (TextBlock(text="Hi."),)
USAGE = Usage(input_tokens=11, cached_tokens=7, cache_write_tokens=5, output_tokens=9)

ODD_COUNTS = (None, "12", -3, float("nan"), float("inf"), True, [], {"of": 3})
"""What stands in the place of a count and is none."""


def marked(raws: Sequence[bytes]) -> list[Frame]:
    """Frames, with the words that each brings, whoever sends it."""
    return [Frame(raw, _words(raw)) for raw in raws]


def frames(*events: object) -> list[Frame]:
    """Frames of these events."""
    return marked([event if isinstance(event, bytes) else sse(event) for event in events])


def _words(raw: bytes) -> str:
    _, found, text = raw.decode().partition("data: ")
    if not found or not text.startswith("{"):
        return ""
    event = json.loads(text)
    if "choices" in event:
        return "".join(_chat_words(choice.get("delta") or {}) for choice in event["choices"][:1])
    match event.get("type", ""):
        case "content_block_start":
            return str(event["content_block"].get("text", ""))
        case "content_block_delta":
            delta = event["delta"]
            # The input of a server's own tool is sealed with the rest of its block.
            return delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
        case "response.reasoning_summary_part.added" if event["summary_index"]:
            return "\n\n"
        case str(kind) if kind.startswith("response."):
            return event.get("delta", "")
    return ""


def _chat_words(delta: Event) -> str:
    said = [delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content", "refusal")]
    return "".join([*said, *(call["function"].get("arguments") or "" for call in delta.get("tool_calls") or [])])


# Anthropic


def start(index: int, block: Event) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


BEGIN = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
END = {"type": "message_stop"}
SAY_HI = (start(0, {"type": "text", "text": ""}), delta(0, "text_delta", text="Hi."), stop(0))


def because(reason: str, **more: object) -> Event:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": {"output_tokens": 2}}


def said_then(reason: str, finish: FinishReason, **more: object) -> Recording:
    events = frames(BEGIN, *SAY_HI, because(reason, **more), END)
    return Recording(name=reason, frames=events, content=HI, finish=finish)


ANTHROPIC_RECORDINGS = [
    Recording(
        name="all-there-is",
        frames=marked(ANTHROPIC.frames(ANTHROPIC.full)),
        content=(THOUGHT, ThinkingBlock(text=""), LOOKS, *CALLS),
        finish="tool_calls",
        usage=Usage(input_tokens=11, cached_tokens=7, cache_write_tokens=5, output_tokens=23),
    ),
    Recording(
        name="tiny",
        frames=frames(
            {"type": "message_start", "message": {"usage": {}}},
            start(0, {"type": "text", "text": ""}),
            delta(0, "text_delta", text="é"),
            stop(0),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            END,
        ),
        content=(TextBlock(text="é"),),
    ),
    said_then("stop_sequence", "stop_sequence", stop_sequence="x"),
    said_then("max_tokens", "length"),
    said_then("model_context_window_exceeded", "length"),
    Recording(
        name="window-exceeded-without-words",
        frames=frames(BEGIN, because("model_context_window_exceeded"), END),
        failure="context_overflow",
    ),
    said_then("pause_turn", "pause"),
    said_then("refusal", "refusal", stop_details={"category": "cyber", "explanation": "no"}),
    Recording(
        name="thinks-between-calls",
        frames=[
            *frames(
                BEGIN,
                start(0, {"type": "thinking", "thinking": "", "signature": ""}),
                delta(0, "signature_delta", signature="s"),  # its words are omitted
                stop(0),
                start(1, {"type": "tool_use", "id": "a", "name": "look", "input": {}}),
                stop(1),
                start(2, {"type": "thinking", "thinking": "", "signature": ""}),
                delta(2, "thinking_delta", thinking="So."),
                delta(2, "signature_delta", signature="t"),
                stop(2),
                start(3, {"type": "tool_use", "id": "b", "name": "look", "input": {"where": "up"}}),
            ),
            Frame(sse(stop(3)), '{"where":"up"}'),
            *frames(because("tool_use"), END),
        ],
        content=(
            ThinkingBlock(text=""),
            ToolCallBlock(call_id="a", name="look", arguments="{}"),
            ThinkingBlock(text="So."),
            ToolCallBlock(call_id="b", name="look", arguments='{"where":"up"}'),
        ),
        finish="tool_calls",
    ),
    Recording(
        name="interleaved-and-unknown",
        frames=frames(
            BEGIN,
            {"type": "something_new"},
            start(0, {"type": "text", "text": "H"}),
            start(1, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
            delta(0, "text_delta", text="i."),
            sse(delta(1, "something_new", x="y")),
            delta(0, "citations_delta", citation="c"),
            stop(1),
            stop(0),
            because("end_turn"),
            END,
        ),
        content=(*HI, ThinkingBlock(text="")),
    ),
    Recording(
        name="overloaded",
        frames=frames(BEGIN, *SAY_HI[:2], ANTHROPIC.error_frame),
        failure="overloaded",
    ),
    Recording(name="nothing-said", frames=frames(BEGIN, because("end_turn"), END), failure="empty"),
]

# Chat Completions


def chunk(stop: str | None = None, usage: Event | None = None, **delta: object) -> Event:
    more = {"usage": usage} if usage else {}
    return {"choices": [{"delta": delta, "finish_reason": stop}], **more}


def piece(text: str, *, index: int | None = None, given_id: str = "", name: str = "") -> Event:
    function = {"arguments": text, **({"name": name} if name else {})}
    place = {} if index is None else {"index": index}
    return {**place, **({"id": given_id} if given_id else {}), "function": function}


DONE = b"data: [DONE]\n\n"


def called(name: str, *pieces: list[Event], ids: tuple[str, str] = ("", "")) -> Recording:
    """Two calls, `f` and `g`, however they are told apart."""
    return Recording(
        name=name,
        frames=frames(*(chunk(tool_calls=each) for each in pieces), chunk("tool_calls"), DONE),
        content=tuple(
            ToolCallBlock(call_id=call_id, name=each, arguments="{}") for each, call_id in zip("fg", ids, strict=True)
        ),
        finish="tool_calls",
    )


def chat_recordings(provider: Provider, *thoughts: ThinkingBlock) -> list[Recording]:
    return [
        Recording(
            name="all-there-is",
            frames=marked(provider.frames(provider.full)),
            content=(*thoughts, LOOKS, *CALLS),
            finish="tool_calls",
            usage=USAGE,
        ),
        Recording(
            name="tiny",
            frames=frames(chunk(content="é"), chunk("stop"), DONE),
            content=(TextBlock(text="é"),),
        ),
    ]


CHAT_RECORDINGS = [
    *chat_recordings(CHAT),
    Recording(
        name="keep-alives-and-no-end",
        frames=frames(b": keep-alive\n\n", chunk(content="Hi."), b": keep-alive\n\n", b"\n", chunk("stop")),
        content=HI,
    ),
    called(
        "calls-in-turns",
        [piece("{", index=0, given_id="a", name="f")],
        [piece("{}", index=1, given_id="b", name="g")],
        [piece("}", index=0)],
        ids=("a", "b"),
    ),
    called("one-index-for-all", [piece("{}", index=0, given_id="a", name="f")],
           [piece("{}", index=0, given_id="b", name="g")], ids=("a", "b")),
    called("no-index-no-id-whole-calls", [piece("{}", name="f"), piece("{}", name="g")]),
    Recording(name="length", frames=frames(chunk(content="Hi."), chunk("length"), DONE), content=HI, finish="length"),
    Recording(
        name="filter", frames=frames(chunk(content="Hi."), chunk("content_filter"), DONE), content=HI, finish="filter"
    ),
    Recording(
        name="refusal", frames=frames(chunk(refusal="Hi."), chunk("stop"), DONE), content=HI, finish="refusal"
    ),
    Recording(
        name="tokens-with-each-chunk",
        frames=frames(
            chunk(usage={"prompt_tokens": 3, "completion_tokens": 1}, content="H"),
            chunk(usage={"prompt_tokens": 3, "completion_tokens": 2}, content="i."),
            chunk("stop"),
            DONE,
        ),
        content=HI,
        usage=Usage(input_tokens=3, output_tokens=2),
    ),
    Recording(name="overloaded", frames=frames(chunk(content="Hi."), CHAT.error_frame, DONE), failure="overloaded"),
    Recording(name="nothing-said", frames=frames(chunk("stop"), DONE), failure="empty"),
]  # fmt: skip
DEEPSEEK_RECORDINGS = [
    *chat_recordings(DEEPSEEK, THOUGHT),
    Recording(
        name="thinks-and-hits-the-cache",
        frames=frames(
            chunk(reasoning_content="Hm"),
            chunk(reasoning_content="m."),
            chunk(content="Hi."),
            chunk("stop"),
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}},
            DONE,
        ),
        content=(ThinkingBlock(text="Hmm."), *HI),
        usage=Usage(input_tokens=5, cached_tokens=4, output_tokens=2),
    ),
    Recording(
        name="out-of-resources",
        frames=frames(chunk(content="Hi."), chunk("insufficient_system_resource"), DONE),
        failure="overloaded",
    ),
]

# Responses


def numbered(*events: Event) -> list[Frame]:
    return frames(*({**event, "sequence_number": at} for at, event in enumerate(events)))


def response(end: str, **more: object) -> Event:
    return {"type": f"response.{end}", "response": more}


def message(text: str, kind: str = "output_text") -> list[Event]:
    """A message of one part."""
    place = {"output_index": 0, "content_index": 0}
    field = "refusal" if kind == "refusal" else "text"
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
        {"type": "response.content_part.added", **place, "part": {"type": kind}},
        {"type": f"response.{kind}.delta", **place, "delta": text},
        {"type": "response.content_part.done", **place, "part": {"type": kind, field: text}},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message"}},
    ]


SAYS_HI = message("Hi.")


def incomplete(reason: str, finish: FinishReason) -> Recording:
    end = response("incomplete", incomplete_details={"reason": reason})
    return Recording(name=reason, frames=numbered(*SAYS_HI, end), content=HI, finish=finish)


def item(kind: str, item: Event) -> Event:
    return {"type": f"response.output_item.{kind}", "output_index": 0, "item": item}


SEALED = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"}
RESPONSES_RECORDINGS = [
    Recording(
        name="all-there-is",
        frames=marked(RESPONSES.frames(RESPONSES.full)),
        content=(
            ThinkingBlock(text="Where shall I look?\n\nUp, perhaps."),
            TextBlock(text="I will glance twîce 🌍."),
            ThinkingBlock(text=""),
            *CALLS,
        ),
        finish="tool_calls",
        usage=USAGE,
    ),
    Recording(
        name="tiny",
        frames=frames(*message("é")[1:4], response("completed")),
        content=(TextBlock(text="é"),),
    ),
    Recording(
        name="without-pieces",
        frames=[
            *numbered(*SAYS_HI[:2]),
            Frame(sse({**SAYS_HI[3], "sequence_number": 2}), "Hi."),
            Frame(sse({**SAYS_HI[4], "sequence_number": 3})),
            Frame(sse({**response("completed"), "sequence_number": 4})),
        ],
        content=HI,
    ),
    Recording(
        name="open-reasoning",
        frames=numbered(
            item("added", SEALED),
            {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Hm."},
            item("done", SEALED),
            {"type": "response.compaction.compacting"},
            *({**event, "output_index": 1} for event in SAYS_HI),
            response("completed"),
        ),
        content=(ThinkingBlock(text="Hm."), *HI),
    ),
    incomplete("max_output_tokens", "length"),
    incomplete("content_filter", "filter"),
    incomplete("steered", "steered"),
    Recording(
        name="refusal",
        frames=numbered(*message("Hi.", "refusal"), response("completed")),
        content=HI,
        finish="refusal",
    ),
    Recording(
        name="failed",
        frames=numbered(*SAYS_HI, response("failed", error={"code": "rate_limit_exceeded", "message": "x"})),
        failure="rate_limit",
    ),
    Recording(
        name="error-flat",
        frames=numbered(*SAYS_HI[:3], {"type": "error", "code": "server_overloaded", "message": "x"}),
        failure="overloaded",
    ),
    Recording(
        name="error-nested",
        frames=numbered(*SAYS_HI[:3], {"type": "error", "error": {"type": "server_error", "message": "x"}}),
        failure="server",
    ),
]


def case(provider: Provider, recordings: Sequence[Recording]) -> AdapterCase:
    return AdapterCase(
        name=provider.name,
        adapter=_ignoring_the_address(provider.adapter),
        model=f"{provider.model}?base_url={{url}}",
        recordings=recordings,
        body=provider.body,
    )


def _ignoring_the_address(adapter: Callable[[], Adapter]) -> Callable[[str], Adapter]:
    return lambda url: adapter()  # it stands in the model's name


CASES = [
    case(ANTHROPIC, ANTHROPIC_RECORDINGS),
    case(CHAT, CHAT_RECORDINGS),
    case(DEEPSEEK, DEEPSEEK_RECORDINGS),
    case(RESPONSES, RESPONSES_RECORDINGS),
]
