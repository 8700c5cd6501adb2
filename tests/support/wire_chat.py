"""Chat Completions as a loopback server sees it: OpenAI's rules, or DeepSeek's, and its stream."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from attrs import define, field

from support import wire_json
from support.wire_files import IMAGES, PDF, url_fault
from support.wire_schemas import openai_refusal
from support.wire_server import Answer, Asked, Ending, at_once, refusal, sse

_replies = count()
KEY = "sk-test-0123456789"
MODELS = ("gpt-test", "gpt-other", "deepseek-test")
Piece = dict[str, Any]

_TOP = {
    "model", "messages", "stream", "stream_options", "tools", "temperature", "top_p", "reasoning_effort",
    "max_tokens", "max_completion_tokens", "tool_choice", "seed", "stop", "n", "user", "response_format",
}  # fmt: skip
_MESSAGES = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


class Refused(Exception):
    """Why a request breaks the rules."""


def text(words: str) -> Piece:
    return {"content": words}


def thinking(words: str) -> Piece:
    return {"reasoning_content": words}


def call(name: str, raw: str, call_id: str = "") -> Piece:
    return {"name": name, "raw": raw, "id": call_id}


@define
class ChatWire:
    """Answers the n-th legal request with the n-th reply: pieces, and the reason to stop.

    With `thinks` it is DeepSeek: it shows its reasoning, and wants it back behind every answer with calls. An
    answer that the request binds to a schema, or to JSON, has the words `bound` instead of its own, if there are any.
    """

    replies: Sequence[tuple[Sequence[Piece], str]]
    key: str = KEY
    thinks: bool = False
    bound: str = ""
    chunk: int = 7
    after: Callable[[list[bytes]], tuple[list[bytes], Ending]] = lambda frames: (frames, "whole")
    pace: Callable[[int], Awaitable[object]] = at_once
    answered: int = field(default=0, init=False)
    refused: list[str] = field(factory=list, init=False)
    _reasons: dict[str, str] = field(factory=dict, init=False)

    def __call__(self, asked: Asked) -> Answer:
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.key:
            return _error(401, f"Incorrect API key provided: {given}.", "invalid_api_key")
        if not asked.path.endswith("/chat/completions"):
            return _error(404, "Invalid URL")
        try:
            body = wire_json.read(asked.raw)
            if body["model"] not in MODELS:
                return _error(404, f"The model `{body['model']}` does not exist", "model_not_found")
            self._check(body)
        except (Refused, ValueError) as error:
            self.refused.append(str(error))
            return _error(400, str(error))
        pieces, stop = self.replies[self.answered] if self.answered < len(self.replies) else ([text("done")], "stop")
        self.answered += 1
        if self.bound and self._binds(body.get("response_format")):
            pieces = [text(self.bound) if "content" in piece else piece for piece in pieces]
        frames, ending = self.after(self.frames(pieces, stop))
        return Answer(chunks=frames, ending=ending, pace=self.pace)

    def frames(self, pieces: Sequence[Piece], stop: str) -> list[bytes]:
        """The stream of a reply."""
        number = next(_replies)
        out = [self._chunk({"role": "assistant", "content": ""}), b": keep-alive\n\n"]
        reasoning, ids = "", []
        for piece in pieces:
            if "raw" in piece:
                call_id = piece["id"] or f"call_{number}_{len(ids)}"
                first = {"index": len(ids), "id": call_id, "type": "function",
                         "function": {"name": piece["name"], "arguments": ""}}  # fmt: skip
                out.append(self._chunk({"tool_calls": [first]}))
                more = [{"index": len(ids), "function": {"arguments": part}} for part in self._parts(piece["raw"])]
                out += [self._chunk({"tool_calls": [fragment]}) for fragment in more]
                ids.append(call_id)
            else:
                ((name, words),) = piece.items()
                reasoning += words if name == "reasoning_content" else ""
                out += [self._chunk({name: part}) for part in self._parts(words)]
        if ids:
            self._reasons[ids[0]] = reasoning
        out.append(self._chunk({}, stop))
        details = {"cached_tokens": 7, "cache_write_tokens": 5}
        usage = {"prompt_tokens": 23, "completion_tokens": 9, "prompt_tokens_details": details}
        out.append(sse({**self._envelope(), "choices": [], "usage": usage}))
        out.append(b"data: [DONE]\n\n")
        return out

    def _chunk(self, delta: dict[str, Any], stop: str | None = None) -> bytes:
        return sse({**self._envelope(), "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})

    def _envelope(self) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test"}

    def _parts(self, words: str) -> list[str]:
        return [words[at : at + self.chunk] for at in range(0, len(words), self.chunk)]

    def _check(self, body: dict[str, Any]) -> None:
        for name in body.keys() - _TOP - ({"thinking"} if self.thinks else set()):
            raise Refused(f"Unrecognized request argument supplied: {name}")
        _require(body.get("stream") is True, "stream")
        for tool in body.get("tools", []):
            _require(tool["type"] == "function" and tool["function"]["parameters"]["type"] == "object", "tools")
        if "response_format" in body:
            self._check_output(body["response_format"], body["messages"])
        self._check_messages(body["messages"])

    def _check_output(self, wanted: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        if wanted["type"] == "json_object":
            _require(wanted.keys() == {"type"}, "Unknown parameter in response_format")
            told = any("json" in str(message["content"]).lower() for message in messages)
            _require(told, "Prompt must contain the word 'json' in some form to use 'response_format'")
            return
        _require(wanted["type"] == "json_schema" and not self.thinks, "This response_format type is unavailable now")
        _require(wanted.keys() == {"type", "json_schema"}, "Unknown parameter in response_format")
        given = wanted["json_schema"]
        extra = given.keys() - {"name", "schema", "strict", "description"}
        _require(not extra, f"Unknown parameter: 'response_format.json_schema.{extra}'")
        refused = openai_refusal(given["name"], given["schema"], strict=given.get("strict") is True)
        _require(not refused, f"Invalid schema for response_format '{given['name']}': {refused}")

    @staticmethod
    def _binds(wanted: dict[str, Any] | None) -> bool:
        return wanted is not None and (wanted["type"] == "json_object" or wanted["json_schema"]["strict"] is True)

    def _check_messages(self, messages: list[dict[str, Any]]) -> None:
        _require(messages and messages[-1]["role"] in ("user", "tool"), "the last message must be a user's or a tool's")
        wanted: list[str] = []
        for index, message in enumerate(messages):
            where, role = f"messages[{index}]", message["role"]
            _require(role != "system" or index == 0, f"{where}: system must come first")
            allowed = _MESSAGES[role] | ({"reasoning_content"} if self.thinks and role == "assistant" else set())
            _require(message.keys() <= allowed, f"{where}: unknown {message.keys() - allowed}")
            if role == "tool":
                _require(isinstance(message["content"], str), f"{where}: tool content must be a string")
                _require(message["tool_call_id"] in wanted, f"{where}: tool_call_id of no call before it")
                wanted.remove(message["tool_call_id"])
                continue
            _require(not wanted, f"{where}: tool_call_ids did not have response messages: {wanted}")
            calls = message.get("tool_calls") or []
            if role == "user" and isinstance(message["content"], list):
                self._check_parts(where, message["content"])
                continue
            _require(isinstance(message["content"], str) or calls, f"{where}: content is null without tool_calls")
            for made in calls:
                arguments = made["function"]["arguments"]
                _require(isinstance(wire_json.read(arguments), dict), f"{where}: arguments are not JSON")
                _require(made["type"] == "function", f"{where}: tool_calls")
                named = re.fullmatch("[a-zA-Z0-9_-]{1,64}", made["function"]["name"])
                _require(named, f"Invalid '{where}.tool_calls.function.name'")
                _require(0 < len(made["id"]) <= 64, f"Invalid '{where}.tool_calls.id': string too long")
            wanted = [made["id"] for made in calls]
            if self.thinks and calls:
                self._check_reasoning(where, message, wanted)
        _require(not wanted, f"tool_call_ids did not have response messages: {wanted}")

    def _check_parts(self, where: str, parts: list[dict[str, Any]]) -> None:
        _require(not self.thinks, f"{where}: unknown variant `image_url`, expected `text`")
        _require(parts, f"{where}: content is an empty array")
        for part in parts:
            kind = part["type"]
            _require(kind in ("text", "image_url", "file"), f"{where}: Invalid value: '{kind}'")
            _require(part.keys() == {"type", kind}, f"{where}: unknown {part.keys()}")
            inner = part[kind]
            if kind == "text":
                _require(inner, f"{where}: text is empty")
            elif kind == "image_url":
                _require(inner.keys() <= {"url", "detail"}, f"{where}: image_url")
                why = url_fault(inner["url"], IMAGES)
                _require(not why, f"{where}: image_url: {why}")
            else:
                _require(inner.keys() == {"filename", "file_data"}, f"{where}: Missing required parameter: file")
                why = "" if inner["filename"] else "filename is empty"
                why = why or url_fault(inner["file_data"], PDF)
                _require(not why, f"{where}: file: {why}")

    def _check_reasoning(self, where: str, message: dict[str, Any], ids: list[str]) -> None:
        missing = f"{where}: The `reasoning_content` in the thinking mode must be passed back"
        _require("reasoning_content" in message, missing)
        _require(message["reasoning_content"] == self._reasons.get(ids[0], ""), missing)


def _error(status: int, message: str, code: str | None = None) -> Answer:
    return refusal(
        status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    )


def _require(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


def error_frame(kind: str, message: str) -> bytes:
    """An error in mid-stream."""
    return sse({"error": {"message": message, "type": kind, "code": kind, "param": None}})
