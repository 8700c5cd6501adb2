"""Anthropic's Messages API as a loopback server sees it: its stream, and the rules it refuses requests by.

A thinking block is signed with a hash of everything before it, and for one account at one address, so that a changed
prefix is refused, and what another account was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

from attrs import define, field

from support import wire_json
from support.wire_files import IMAGES, PDF, fault
from support.wire_schemas import anthropic_refusal
from support.wire_server import Answer, Asked, Ending, at_once, refusal, sse

_replies = count()
KEY = "sk-ant-test-0123456789"
MODELS = ("claude-test", "claude-other")
Block = dict[str, Any]

_TOP = {
    "model", "max_tokens", "messages", "stream", "system", "tools", "thinking", "output_config", "cache_control",
    "metadata", "stop_sequences", "tool_choice", "service_tier", "container", "diagnostics", "inference_geo", "speed",
}  # fmt: skip
_BLOCKS = {
    "text": {"type", "text", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
}
_FILES = {"image": IMAGES, "document": PDF}
IMAGE_MAX_CHARS = 5 * 1024 * 1024
_ALLOWED = {
    "user": {"text", "tool_result", "image", "document"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
}


class Refused(Exception):
    """Why a request breaks the rules."""


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def thinking(words: str) -> Block:
    return {"type": "thinking", "thinking": words, "signature": ""}


def redacted() -> Block:
    return {"type": "redacted_thinking", "data": ""}


def call(name: str, raw: str, call_id: str = "") -> Block:
    """A call with its arguments as they are streamed."""
    return {"type": "tool_use", "id": call_id, "name": name, "raw": raw}


@define
class AnthropicWire:
    """Answers the n-th legal request with the n-th reply: blocks, and the reason to stop.

    An answer that the request binds to a schema has the words `bound` instead of its own, if there are any.
    """

    replies: Sequence[tuple[Sequence[Block], str]]
    keys: Collection[str] = (KEY,)
    bound: str = ""
    chunk: int = 7
    after: Callable[[list[bytes]], tuple[list[bytes], Ending]] = lambda frames: (frames, "whole")
    """What becomes of the frames, and how the stream ends."""
    pace: Callable[[int], Awaitable[object]] = at_once
    answered: int = field(default=0, init=False)
    refused: list[str] = field(factory=list, init=False)

    @property
    def key(self) -> str:
        """One that it takes."""
        return next(iter(self.keys))

    def __call__(self, asked: Asked) -> Answer:
        given = asked.headers.get("x-api-key") or asked.headers.get("authorization", "").removeprefix("Bearer ")
        if given not in self.keys:
            return _error(401, "authentication_error", f"invalid api key {given}")
        if asked.path != "/v1/messages" or "anthropic-version" not in asked.headers:
            return _error(404, "not_found_error", "Not found")
        try:
            body = wire_json.read(asked.raw)
            account = f"{given} at {asked.headers.get('host', '')}"
            check(body, account)
        except (Refused, ValueError) as error:
            self.refused.append(str(error))
            kind = "not_found_error" if str(error).startswith("model:") else "invalid_request_error"
            return _error(404 if kind == "not_found_error" else 400, kind, str(error))
        blocks, stop = (
            self.replies[self.answered] if self.answered < len(self.replies) else ([text("done")], "end_turn")
        )
        self.answered += 1
        if self.bound and "format" in body.get("output_config", {}):
            blocks = [text(self.bound) if block["type"] == "text" else block for block in blocks]
        frames, ending = self.after(self.frames(body, blocks, stop, account))
        return Answer(chunks=frames, ending=ending, pace=self.pace)

    def frames(self, body: dict[str, Any], blocks: Sequence[Block], stop: str, account: str = "") -> list[bytes]:
        """The stream of a reply to `body`."""
        number = next(_replies)
        prefix = _prefix(body, account)
        usage = {"input_tokens": 11, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": [],
                   "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
        out = [_event("message_start", message=message), _event("ping")]
        for index, block in enumerate(blocks):
            out += self._block(index, block, prefix, number)
        delta = {"stop_reason": stop, "stop_sequence": None}
        out.append(_event("message_delta", delta=delta, usage={"output_tokens": 23}))
        out.append(_event("message_stop"))
        return out

    def _block(self, index: int, block: Block, prefix: list[object], number: int) -> list[bytes]:
        deltas: list[Block] = []
        match block["type"]:
            case "text":
                start = text("")
                deltas = [{"type": "text_delta", "text": piece} for piece in self._pieces(block["text"])]
                if block["text"].strip():
                    prefix.append(["assistant", text(block["text"])])
            case "thinking":
                start = thinking("")
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in self._pieces(block["thinking"])]
                signed = {**block, "signature": _signature(prefix, block["thinking"])}
                deltas.append({"type": "signature_delta", "signature": signed["signature"]})
                prefix.append(["assistant", signed])
            case "redacted_thinking":
                start = {**block, "data": _signature(prefix, "")}
                prefix.append(["assistant", start])
            case _:
                start = {
                    "type": "tool_use",
                    "id": block["id"] or f"toolu_{number}_{index}",
                    "name": block["name"],
                    "input": {},
                }
                deltas = [
                    {"type": "input_json_delta", "partial_json": piece} for piece in ["", *self._pieces(block["raw"])]
                ]
                given = json.loads(block["raw"] or "{}") if _is_json(block["raw"] or "{}") else {}
                prefix.append(["assistant", {**start, "input": given}])
        return [
            _event("content_block_start", index=index, content_block=start),
            *(_event("content_block_delta", index=index, delta=delta) for delta in deltas),
            _event("content_block_stop", index=index),
        ]

    def _pieces(self, words: str) -> list[str]:
        return [words[at : at + self.chunk] for at in range(0, len(words), self.chunk)]


def _event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, kind)


def error_frame(kind: str, message: str) -> bytes:
    """An error in mid-stream."""
    return _event("error", error={"type": kind, "message": message}, request_id="req_1")


def _error(status: int, kind: str, message: str) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return refusal(status, body)


def _is_json(raw: str) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except ValueError:
        return False


def _prefix(body: dict[str, Any], account: str) -> list[object]:
    """All that stands before the answer, marks for the cache left out, and who is given it."""
    head = [account, body["model"], body.get("system"), body.get("tools")]
    flat = [[message["role"], block] for message in body["messages"] for block in message["content"]]
    value: list[object] = json.loads(json.dumps([head, *flat]), object_hook=_unmarked)
    return value


def _unmarked(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "cache_control"}


def _signature(prefix: list[object], words: str) -> str:
    return sha256(json.dumps([prefix, words], sort_keys=True).encode()).hexdigest()


def _require(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


def check(body: dict[str, Any], account: str = "") -> None:
    """Raise `Refused` with what the provider says, if it refuses `body`."""
    for name in body.keys() - _TOP:
        raise Refused(f"{name}: Extra inputs are not permitted")
    _require(body["model"] in MODELS, f"model: {body['model']}")
    _require(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens: Field required")
    _require(body.get("stream") is True, "stream: expected true")
    _check_output(body.get("output_config", {}))
    for index, tool in enumerate(body.get("tools", [])):
        _require(tool.keys() <= {"name", "description", "input_schema", "cache_control"}, f"tools.{index}: extra")
        _require(tool["input_schema"].get("type") == "object", f"tools.{index}.input_schema.type: Field required")
    _require(json.dumps(body).count('"cache_control"') <= 4, "A maximum of 4 blocks with cache_control may be provided")
    for block in body.get("system", []):
        _require(block["text"].strip(), "system: text content blocks must be non-empty")
    _check_messages(body["messages"])
    _check_signatures(body, account)


def _check_output(config: dict[str, Any]) -> None:
    _require(config.keys() <= {"effort", "format"}, "output_config: Extra inputs are not permitted")
    if wanted := config.get("format"):
        _require(wanted["type"] == "json_schema", "output_config.format.type: Input should be 'json_schema'")
        _require(wanted.keys() == {"type", "schema"}, "output_config.format: Extra inputs are not permitted")
        refused = anthropic_refusal(wanted["schema"])
        _require(not refused, f"output_config.format.schema: {refused}")


def _check_messages(messages: list[dict[str, Any]]) -> None:
    _require(messages, "messages: at least one message is required")
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", message["role"]
        _require(role == ("user", "assistant")[index % 2], f"{where}: roles must alternate, beginning with user")
        _require(isinstance(message["content"], list) and message["content"], f"{where}: content must be non-empty")
        last = message["content"][-1]["type"]
        final = f"{where}: The final block in an assistant message cannot be `{last}`."
        _require(last not in ("thinking", "redacted_thinking"), final)
        for block in message["content"]:
            _require(block["type"] in _ALLOWED[role], f"{where}: {block['type']} is not permitted for {role}")
            extra = block.keys() - _BLOCKS[block["type"]]
            _require(not extra, f"{where}: {extra}: Extra inputs are not permitted")
            if block["type"] == "text":
                _require(block["text"].strip(), f"{where}: text content blocks must be non-empty")
            if block["type"] == "tool_use":
                _require(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]), f"{where}: tool_use.id: bad pattern")
                _require(re.fullmatch(r"[a-zA-Z0-9_-]{1,200}", block["name"]), f"{where}: tool_use.name: bad pattern")
                _require(
                    isinstance(block["input"], dict), f"{where}: tool_use.input: Input should be a valid dictionary"
                )
            _check_file(where, block)
            for inner in block.get("content", []):
                is_text = inner["type"] == "text"
                _require(
                    is_text or inner["type"] in _FILES, f"{where}: {inner['type']} is not permitted in tool_result"
                )
                _require(is_text or not block.get("is_error"), f"{where}: all content must be text if is_error is true")
                _require(not is_text or inner["text"].strip(), f"{where}: text content blocks must be non-empty")
                _check_file(where, inner)
    _check_calls(messages)


def _check_file(where: str, block: Block) -> None:
    if block["type"] in _FILES:
        source = block["source"]
        _require(source.keys() == {"type", "media_type", "data"}, f"{where}: source: Input does not match the schema")
        _require(source["type"] == "base64", f"{where}: source.type: {source['type']}")
        why = fault(source["media_type"], source["data"], _FILES[block["type"]])
        _require(not why, f"{where}: source: {why}")
        small = block["type"] != "image" or len(source["data"]) <= IMAGE_MAX_CHARS
        _require(small, f"{where}: image exceeds 5 MB maximum")
        _require("title" not in block or block["title"], f"{where}: title: String should have at least 1 character")


def _check_calls(messages: list[dict[str, Any]]) -> None:
    seen: set[str] = set()
    wanted: list[str] = []
    for index, message in enumerate(messages):
        blocks = message["content"]
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        missing = f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after"
        _require(sorted(answered) == sorted(wanted), f"{missing}: {wanted} answered by {answered}")
        leading = [block["type"] == "tool_result" for block in blocks[: len(answered)]]
        _require(all(leading), f"messages.{index}: tool_result blocks must come first")
        wanted = [block["id"] for block in blocks if block["type"] == "tool_use"]
        _require(not seen & set(wanted) and len(set(wanted)) == len(wanted), "messages: `tool_use` ids must be unique")
        seen.update(wanted)
    _require(not wanted, "messages: the last `tool_use` was not answered")


def _check_signatures(body: dict[str, Any], account: str) -> None:
    whole = _prefix(body, account)
    for index, entry in enumerate(whole[1:], 1):
        block = entry[1]  # type: ignore[index]
        if block["type"] == "thinking":
            expected, given = _signature(whole[:index], block["thinking"]), block["signature"]
        elif block["type"] == "redacted_thinking":
            expected, given = _signature(whole[:index], ""), block["data"]
        else:
            continue
        _require(given == expected, f"messages: Invalid `signature` in `thinking` block {index}")
