"""From head and messages to the body of a Messages request.

What has been sent is never rewritten: up to each answer, a later request of the same head has the same
bytes. Marks for the cache stand in the head alone; the provider moves its own along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from flightlog_hookspecs import (
    AssistantMessage,
    Block,
    FileBlock,
    Head,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResult,
    UserMessage,
)
from flightlog_plugins.wire.files import base64_json, is_image, is_pdf, parts
from flightlog_plugins.wire.fragments import block_state, fragment, messages_of, opened, tag
from flightlog_plugins.wire.json_text import dumps, joined, listed, sendable_arguments
from flightlog_plugins.wire.model_name import COMMON, COUNT, ModelName, Rule, is_count, one_of, parsed
from flightlog_plugins.wire.output_schema import ANTHROPIC, asked_for
from flightlog_plugins.wire.stand_ins import plain_id, tool_name

ADAPTER: Final = "anthropic"
MAX_TOKENS: Final = 32_000
"""Tokens of an answer, thinking included, unless the model's name says otherwise."""

NO_WORDS: Final = "(no text)"
"""Stands for a message without words, which the provider refuses."""

IMAGE_MAX_BYTES: Final = 5 * 1024 * 1024 * 3 // 4
"""The provider refuses a larger image: 5 MiB in base64."""

_THINKING: Final = ("adaptive", "disabled", "between_tools")
_OPTIONS: Final[Mapping[str, Rule]] = {
    **COMMON,
    "max_tokens": COUNT,
    "thinking": (
        lambda value: value in _THINKING or (is_count(value) and int(value) >= 1024),
        f"{', '.join(_THINKING)} or a budget of at least 1024 tokens",
    ),
    "display": one_of("summarized", "omitted"),
    "effort": one_of("low", "medium", "high", "xhigh", "max"),
    "cache": one_of("5m", "1h", "off"),
}
_LINE_END: Final = re.compile(r"[\n\r\t]")


def model_name(head: Head) -> ModelName:
    """The model and its options."""
    return parsed(head.model, _OPTIONS)


def encoded(part: Head | Message) -> bytes:
    """The fragment of `part`: a head, or the role and the content blocks of a message."""
    match part:
        case Head():
            return _head(part)
        case UserMessage():
            return fragment("user", *(parts(part.content, _file, _text) or [_text(NO_WORDS)]))
        case ToolResult():
            return fragment("user", _result(part))
        case AssistantMessage():
            return fragment("assistant", *_blocks(part))


def body(fragments: Sequence[bytes]) -> bytes:
    """The request that `fragments` make.

    Neighbours of one role are one message: all results of an answer stand in the message behind it,
    before any words.
    """
    _, head = opened(fragments[0])
    turns = []
    said = ((role, blocks) for role, *blocks in messages_of(fragments) if blocks)
    for role, run in groupby(said, key=itemgetter(0)):
        turns.append(joined(role=dumps(role), content=listed([block for _, blocks in run for block in blocks])))
    return f'{head[:-1]},"messages":{listed(turns)}}}'.encode()


def _head(head: Head) -> bytes:
    model = model_name(head)
    options = model.options
    fields: dict[str, object] = {
        "model": model.name,
        "max_tokens": int(options.get("max_tokens", MAX_TOKENS)),
        "stream": True,
    }
    if thinking := options.get("thinking"):
        config: dict[str, object] = (
            {"type": thinking} if thinking in _THINKING else {"type": "enabled", "budget_tokens": int(thinking)}
        )
        if display := options.get("display"):
            config["display"] = display
        fields["thinking"] = config
    if output := _output(head, options):
        fields["output_config"] = output
    mark = _cache_mark(options.get("cache", "5m"))
    if mark:
        fields["cache_control"] = mark  # the provider puts it on the last block that can have one
    texts = {name: dumps(value) for name, value in fields.items()}
    if head.system.strip():
        texts["system"] = listed([joined(type='"text"', text=dumps(head.system), **_marked(mark))])
    if head.tools:
        last = len(head.tools) - 1
        texts["tools"] = listed(
            [
                joined(
                    name=dumps(tool.name),
                    description=dumps(tool.description),
                    input_schema=tool.parameters,
                    **(_marked(mark) if index == last else {}),
                )
                for index, tool in enumerate(head.tools)
            ]
        )
    text = joined(**texts)
    # Some models think for one account only.
    account = [f"{name}={options[name]}" for name in ("base_url", "key_env") if name in options]
    return fragment(tag(ADAPTER, "\n".join([text, *account])), text)


def _output(head: Head, options: Mapping[str, str]) -> dict[str, object]:
    """How hard it tries, and what its answer is to fit."""
    output: dict[str, object] = {name: options[name] for name in ("effort",) if name in options}
    wanted = asked_for(head, options)
    if wanted and ANTHROPIC.holds(wanted.schema):
        output["format"] = {"type": "json_schema", "schema": wanted.schema}
    return output


def _cache_mark(cache: str) -> dict[str, str]:
    match cache:
        case "off":
            return {}
        case "5m":
            return {"type": "ephemeral"}
        case _:
            return {"type": "ephemeral", "ttl": cache}


def _marked(mark: dict[str, str]) -> dict[str, str]:
    return {"cache_control": dumps(mark)} if mark else {}


def _blocks(answer: AssistantMessage) -> list[str]:
    """The blocks of an answer, which may end with thinking (as where a call was cut off) only if it is to go on."""
    content = list(answer.content)
    while answer.finish != "pause" and content and _leads_on(content[-1]):
        content.pop()
    return list(filter(None, map(_block, content)))


def _leads_on(block: Block) -> bool:
    """Whether it is thinking, or nothing that is sent."""
    if isinstance(block, ThinkingBlock):
        match block_state(ADAPTER, block):
            case _, {"block": {"type": "thinking" | "redacted_thinking"}}:
                return True
    return not _block(block)


def _block(block: Block) -> str:
    """One block of an answer; "" for one that the provider would refuse."""
    match block:
        case TextBlock():
            return _text(block.text) if block.text.strip() else ""
        case ThinkingBlock():
            match block_state(ADAPTER, block):
                case own, {"block": dict(came)}:
                    return f"{own}\t{dumps(came)}"
                case _:
                    return ""
        case ToolCallBlock():
            return joined(
                type='"tool_use"',
                id=dumps(plain_id(block.call_id)),
                name=dumps(tool_name(block.name)),
                # A fragment's lines are its blocks; line ends in JSON stand between its tokens only.
                input=_LINE_END.sub(" ", sendable_arguments(block.arguments)),
            )
        case FileBlock():
            return ""  # no answer holds one


def _result(result: ToolResult) -> str:
    fields = {"type": '"tool_result"', "tool_use_id": dumps(plain_id(result.call_id))}
    # One that says that it is an error may hold text alone.
    if shown := parts(result.content, _file if result.outcome == "ok" else _no_file, _text):
        fields["content"] = listed(shown)
    if result.outcome != "ok":
        fields["is_error"] = "true"
    return joined(**fields)


def _file(file: FileBlock) -> str:
    """An image or a document; "" for what the provider does not take."""
    if is_image(file) and file.size_bytes <= IMAGE_MAX_BYTES:
        return joined(type='"image"', source=_source(file))
    if is_pdf(file):
        title = {"title": dumps(file.name)} if file.name.strip() else {}
        return joined(type='"document"', source=_source(file), **title)
    return ""


def _no_file(file: FileBlock) -> str:
    return ""


def _source(file: FileBlock) -> str:
    return joined(type='"base64"', media_type=dumps(file.media_type), data=base64_json(file))


def _text(text: str) -> str:
    return joined(type='"text"', text=dumps(text))
