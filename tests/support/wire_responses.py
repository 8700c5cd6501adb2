"""OpenAI's Responses API as a loopback server sees it: its stream, and the rules it refuses requests by.

Reasoning is sealed for one model and one account. It has to come back as it was, in front of what it led to.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import count
from typing import Any

from attrs import define, field

from support import wire_json
from support.wire_files import IMAGES, PDF, url_fault
from support.wire_schemas import openai_refusal
from support.wire_server import Answer, Asked, Ending, at_once, refusal, sse

_replies = count()
KEY = "sk-test-0123456789"
MODELS = ("gpt-test", "gpt-other")
Item = dict[str, Any]

_TOP = {
    "model", "input", "instructions", "stream", "store", "include", "tools", "tool_choice", "reasoning",
    "max_output_tokens", "temperature", "top_p", "parallel_tool_calls", "metadata", "text", "truncation",
}  # fmt: skip
_ITEMS = {
    "message": {"type", "role", "content", "phase"},
    "reasoning": {"type", "id", "summary", "encrypted_content", "content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
}


class Refused(Exception):
    """Why a request breaks the rules."""


def text(words: str, phase: str | None = None) -> Item:
    return {"type": "message", "text": words, "phase": phase}


def thinking(*parts: str) -> Item:
    return {"type": "reasoning", "parts": parts}


def unsealed(**encrypted: str | None) -> Item:
    """Reasoning without anything that could be sent back."""
    return {"type": "reasoning", "parts": (), "unsealed": encrypted}


def search() -> Item:
    """What a tool of the provider's own has done."""
    return {"type": "web_search_call"}


def call(name: str, raw: str) -> Item:
    return {"type": "function_call", "name": name, "raw": raw}


@define
class ResponsesWire:
    """Answers the n-th legal request with the n-th reply: items, and the reason to be incomplete, "" for none.

    An answer that the request binds to a schema has the words `bound` instead of its own, if there are any.
    """

    replies: Sequence[tuple[Sequence[Item], str]]
    keys: Collection[str] = (KEY,)
    bound: str = ""
    chunk: int = 7
    after: Callable[[list[bytes]], tuple[list[bytes], Ending]] = lambda frames: (frames, "whole")
    pace: Callable[[int], Awaitable[object]] = at_once
    answered: int = field(default=0, init=False)
    refused: list[str] = field(factory=list, init=False)
    _issued: dict[str, tuple[Item, Item | None]] = field(factory=dict, init=False)
    """Reasoning by its id, with what followed it."""
    _led_to: dict[str, Item] = field(factory=dict, init=False)
    """The reasoning in front of each call, by call id."""
    _phases: dict[str, str] = field(factory=dict, init=False)

    @property
    def key(self) -> str:
        """One that it takes."""
        return next(iter(self.keys))

    def __call__(self, asked: Asked) -> Answer:
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if given not in self.keys:
            return _error(401, f"Incorrect API key provided: {given}.", "invalid_api_key")
        if not asked.path.endswith("/responses"):
            return _error(404, "Invalid URL")
        try:
            body = wire_json.read(asked.raw)
            if body["model"] not in MODELS:
                return _error(404, f"The model '{body['model']}' does not exist", "model_not_found")
            owner = _owner(body["model"], given)
            self._check(body, owner)
        except (Refused, ValueError) as error:
            self.refused.append(str(error))
            return _error(400, str(error))
        items, why = self.replies[self.answered] if self.answered < len(self.replies) else ([text("done")], "")
        self.answered += 1
        if self.bound and body.get("text", {}).get("format", {}).get("strict") is True:
            items = [text(self.bound, item["phase"]) if item["type"] == "message" else item for item in items]
        frames, ending = self.after(self.frames(body["model"], items, why, given))
        return Answer(chunks=frames, ending=ending, pace=self.pace)

    def frames(self, model: str, items: Sequence[Item], why: str, key: str = KEY) -> list[bytes]:
        """The stream of a reply."""
        number = next(_replies)
        response: Item = {"id": f"resp_{number}", "object": "response", "model": model, "status": "in_progress"}
        events: list[Item] = [{"type": "response.created", "response": response}]
        events.append({"type": "response.in_progress", "response": response})
        before: Item | None = None
        for output, item in enumerate(items):
            made, more = self._item(output, item, f"{number}_{output}", _owner(model, key))
            if before:
                self._issued[before["id"]] = (before, made)
                if made["type"] == "function_call":
                    self._led_to[made["call_id"]] = before
            before = made if made["type"] == "reasoning" else None
            events += more
        usage = {
            "input_tokens": 23,
            "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 5},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 32,
        }
        end = {**response, "status": "incomplete" if why else "completed", "usage": usage}
        if why:
            end["incomplete_details"] = {"reason": why}
        events.append({"type": f"response.{end['status']}", "response": end})
        return [sse({**event, "sequence_number": at}, event["type"]) for at, event in enumerate(events)]

    def _item(self, output: int, item: Item, name: str, owner: str) -> tuple[Item, list[Item]]:
        """The item as it is in the end, and the events that bring it."""
        place = {"output_index": output, "item_id": name}
        match item["type"]:
            case "reasoning":
                start: Item = {
                    "type": "reasoning",
                    "id": f"rs_{name}",
                    "summary": [],
                    "encrypted_content": "incomplete",
                }
                summary = [{"type": "summary_text", "text": part} for part in item["parts"]]
                made = {**start, "summary": summary, "encrypted_content": f"sealed for {owner}: {name}"}
                if "unsealed" in item:
                    del made["encrypted_content"]
                    made.update(item["unsealed"])
                middle = self._reasoning(place, item["parts"])
            case "web_search_call":
                start = {"type": "web_search_call", "id": f"ws_{name}", "status": "in_progress"}
                made = {**start, "status": "completed", "action": {"type": "search", "query": "up"}}
                middle = []
            case "function_call":
                start = {"type": "function_call", "id": f"fc_{name}", "call_id": f"call_{name}", "name": item["name"],
                         "arguments": "", "status": "in_progress"}  # fmt: skip
                made = {**start, "arguments": item["raw"], "status": "completed"}
                kind = "response.function_call_arguments"
                middle = [{"type": f"{kind}.delta", **place, "delta": part} for part in self._parts(item["raw"])]
                middle.append({"type": f"{kind}.done", **place, "arguments": item["raw"]})
            case _:
                start = {
                    "type": "message",
                    "id": f"msg_{name}",
                    "role": "assistant",
                    "content": [],
                    "status": "in_progress",
                }
                part = {"type": "output_text", "text": item["text"], "annotations": []}
                made = {**start, "content": [part], "status": "completed"}
                if item["phase"]:
                    made["phase"] = self._phases[item["text"]] = item["phase"]
                middle = self._words({**place, "content_index": 0}, part)
        added = {"type": "response.output_item.added", "output_index": output, "item": start}
        done = {"type": "response.output_item.done", "output_index": output, "item": {**made, "created_by": "server"}}
        return made, [added, *middle, done]

    def _reasoning(self, place: Item, parts: Sequence[str]) -> list[Item]:
        events: list[Item] = []
        for index, words in enumerate(parts):
            where = {**place, "summary_index": index}
            events.append({"type": "response.reasoning_summary_part.added", **where})
            deltas = self._parts(words)
            events += [{"type": "response.reasoning_summary_text.delta", **where, "delta": part} for part in deltas]
            events.append({"type": "response.reasoning_summary_text.done", **where, "text": words})
            events.append({"type": "response.reasoning_summary_part.done", **where})
        return events

    def _words(self, where: Item, part: Item) -> list[Item]:
        deltas = self._parts(part["text"])
        return [
            {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
            *({"type": "response.output_text.delta", **where, "delta": piece, "obfuscation": "x"} for piece in deltas),
            {"type": "response.output_text.done", **where, "text": part["text"]},
            {"type": "response.content_part.done", **where, "part": part},
        ]

    def _parts(self, words: str) -> list[str]:
        return [words[at : at + self.chunk] for at in range(0, len(words), self.chunk)]

    def _check(self, body: Item, owner: str) -> None:
        for name in body.keys() - _TOP:
            raise Refused(f"Unknown parameter: '{name}'.")
        _require(body.get("stream") is True and body.get("store") is False, "stream and store")
        _check_output(body.get("text", {}))
        for tool in body.get("tools", []):
            _require(tool["type"] == "function" and tool["parameters"]["type"] == "object", "Invalid tools")
        items = body["input"]
        _require(items and items[-1].get("role") != "assistant", "the last item must be a user's or an output")
        wanted: list[str] = []
        for index, item in enumerate(items):
            where, kind = f"input[{index}]", item["type"]
            _require(kind in _ITEMS, f"{where}: unknown type {kind}")
            _require(item.keys() <= _ITEMS[kind], f"Unknown parameter: '{where}.{item.keys() - _ITEMS[kind]}'.")
            if kind == "function_call_output":
                _require(item["call_id"] in wanted, f"No tool call found for function call output {item['call_id']}")
                wanted.remove(item["call_id"])
                if not isinstance(item["output"], str):
                    _check_parts(f"{where}.output", item["output"])
            elif kind == "function_call":
                wanted.append(item["call_id"])
                _require(re.fullmatch("[a-zA-Z0-9_-]{1,64}", item["name"]), f"Invalid '{where}.name'")
                _require(0 < len(item["call_id"]) <= 64, f"Invalid '{where}.call_id': string too long")
                _require(isinstance(wire_json.read(item["arguments"]), dict), f"{where}: arguments")
                self._check_call(item, items[index - 1], owner)
            elif kind == "message":
                _require(item["role"] == "assistant" or not wanted, f"No tool output found for function call {wanted}")
                self._check_message(where, item, items[index + 1 : index + 2])
            else:
                self._check_reasoning(item, items[index + 1 : index + 2], owner)
        _require(not wanted, f"No tool output found for function call {wanted}")

    def _check_call(self, item: Item, before: Item, owner: str) -> None:
        reasoning = self._led_to.get(item["call_id"])
        if reasoning and (reasoning.get("encrypted_content") or "").startswith(f"sealed for {owner}:"):
            missing = (
                f"Item '{item['call_id']}' of type 'function_call' was provided without its required 'reasoning' item"
            )
            _require(before == reasoning, missing)

    def _check_message(self, where: str, item: Item, following: list[Item]) -> None:
        if item["role"] == "user":
            _check_parts(f"{where}.content", item["content"])
            return
        for part in item["content"]:
            _require(
                part.keys() == {"type", "text"} and part["type"] == "output_text", f"Invalid value: '{where}.content'"
            )
            # An answer that was interrupted never got one; calls follow whole answers only.
            if following and following[0]["type"] in ("reasoning", "function_call") and "phase" not in item:
                _require(part["text"] not in self._phases, f"{where}: phase was dropped")

    def _check_reasoning(self, item: Item, following: list[Item], owner: str) -> None:
        issued, led_to = self._issued.get(item["id"], (None, None))
        _require(item == issued, f"Item with id '{item['id']}' not found, or changed")
        missing = "not found. Items are not persisted when `store` is set to false."
        _require(item.get("encrypted_content"), f"Item with id '{item['id']}' {missing}")
        sealed = f"sealed for {owner}:"
        _require(item["encrypted_content"].startswith(sealed), "The encrypted content could not be verified")
        same = following and led_to and following[0]["type"] == led_to["type"]
        same = same and following[0].get("call_id") == led_to.get("call_id")
        _require(same, f"Item '{item['id']}' of type 'reasoning' was provided without its required following item.")


def _owner(model: str, key: str) -> str:
    return f"{model} of {key}"


_PARTS = {
    "input_text": {"type", "text"},
    "input_image": {"type", "image_url", "detail"},
    "input_file": {"type", "filename", "file_data"},
}


def _check_parts(where: str, parts: list[Item]) -> None:
    _require(parts, f"{where}: Invalid: empty array")
    for part in parts:
        _require(part["type"] in _PARTS, f"Invalid value: '{part['type']}' in {where}")
        _require(part.keys() == _PARTS[part["type"]], f"{where}: {part.keys() ^ _PARTS[part['type']]}")
        why = ""
        if part["type"] == "input_image":
            _require(part["detail"] in ("low", "high", "auto"), f"{where}: detail")
            why = url_fault(part["image_url"], IMAGES)
        elif part["type"] == "input_file":
            _require(part["filename"], f"Missing required parameter: '{where}.filename'")
            why = url_fault(part["file_data"], PDF)
        _require(not why, f"{where}: {why}")


def _check_output(wanted: Item) -> None:
    _require(wanted.keys() <= {"format", "verbosity"}, "Unknown parameter in 'text'")
    if form := wanted.get("format"):
        _require(form["type"] == "json_schema", f"Invalid value: '{form['type']}'")
        extra = form.keys() - {"type", "name", "schema", "strict", "description"}
        _require(not extra, f"Unknown parameter: 'text.format.{extra}'")
        refused = openai_refusal(form["name"], form["schema"], strict=form.get("strict") is True)
        _require(not refused, f"Invalid schema for response_format '{form['name']}': {refused}")


def _error(status: int, message: str, code: str | None = None) -> Answer:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return refusal(status, {"error": error})


def _require(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


def error_frame(kind: str, message: str) -> bytes:
    """An error in mid-stream, flat as this protocol has it."""
    return sse({"type": "error", "code": kind, "message": message, "param": None}, "error")
