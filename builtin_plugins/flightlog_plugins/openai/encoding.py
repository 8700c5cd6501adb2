"""From head and messages to the body of a Responses request: items, in the order in which they came.

Nothing is stored at the provider: each request carries the whole conversation, encrypted reasoning included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

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
from flightlog_plugins.wire.files import data_url, filename, has_files, is_image, is_pdf, parts, spoken
from flightlog_plugins.wire.fragments import block_state, fragment, messages_of, opened, state_of, tag
from flightlog_plugins.wire.json_text import dumps, joined, listed, sendable_arguments
from flightlog_plugins.wire.model_name import COMMON, COUNT, NUMBER, ModelName, Rule, one_of, parsed
from flightlog_plugins.wire.output_schema import STRICT_OPENAI, asked_for
from flightlog_plugins.wire.stand_ins import short_id, tool_name

ADAPTER: Final = "openai"

_OPTIONS: Final[Mapping[str, Rule]] = {
    **COMMON,
    "max_tokens": COUNT,
    "effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "summary": one_of("auto", "concise", "detailed"),
    "temperature": NUMBER,
    "top_p": NUMBER,
}


def model_name(head: Head) -> ModelName:
    """The model and its options."""
    return parsed(head.model, _OPTIONS)


def encoded(part: Head | Message) -> bytes:
    """The fragment of `part`: a head, or the items of a message."""
    match part:
        case Head():
            return _head(part)
        case UserMessage():
            return fragment(joined(type='"message"', role='"user"', content=_content(part.content)))
        case ToolResult():
            return fragment(
                joined(type='"function_call_output"', call_id=dumps(short_id(part.call_id)), output=_output(part))
            )
        case AssistantMessage():
            return fragment(*_items(part))


def body(fragments: Sequence[bytes]) -> bytes:
    """The request that `fragments` make."""
    _, head = opened(fragments[0])
    items = [item for lines in messages_of(fragments) for item in lines]
    return f'{head[:-1]},"input":{listed(items)}}}'.encode()


def _head(head: Head) -> bytes:
    model = model_name(head)
    options = model.options
    fields: dict[str, object] = {
        "model": model.name,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if reasoning := {name: options[name] for name in ("effort", "summary") if name in options}:
        fields["reasoning"] = reasoning
    if limit := options.get("max_tokens"):
        fields["max_output_tokens"] = int(limit)
    for name in ("temperature", "top_p"):
        if name in options:
            fields[name] = float(options[name])
    wanted = asked_for(head, options)
    if wanted and wanted.is_object:
        strict = STRICT_OPENAI.holds(wanted.schema)
        schema = {"type": "json_schema", "name": wanted.name, "schema": wanted.schema, "strict": strict}
        fields["text"] = {"format": schema}
    if head.system:
        fields["instructions"] = head.system
    texts = {name: dumps(value) for name, value in fields.items()}
    if head.tools:
        texts["tools"] = listed(
            [
                joined(
                    type='"function"',
                    name=dumps(tool.name),
                    description=dumps(tool.description),
                    parameters=tool.parameters,
                    strict="false",
                )
                for tool in head.tools
            ]
        )
    # Whoever encrypted the reasoning is the only one to read it, and for one account only.
    account = [options["key_env"]] if "key_env" in options else []
    bound_to = [model.name, options.get("base_url", ""), *account]
    return fragment(tag(ADAPTER, dumps(bound_to)), joined(**texts))


def _items(answer: AssistantMessage) -> list[str]:
    """The items of an answer. State is refused without what it led to: none comes last, or in front of a gap."""
    state = state_of(ADAPTER, answer.replay)
    phases = iter(state[1].get("phases", ()) if state else ())
    items = [(isinstance(block, ThinkingBlock), _item(block, phases)) for block in answer.content]
    sent: list[str] = []
    led_to = False
    for is_state, item in reversed(items):
        led_to = bool(item) and (led_to or not is_state)
        if led_to:
            sent.append(item)
    return sent[::-1]


def _item(block: Block, phases: Iterator[Any]) -> str:
    """One item of an answer; "" for one that the provider would refuse."""
    match block:
        case TextBlock():
            return _message(block.text, next(phases, None))
        case ThinkingBlock():
            match block_state(ADAPTER, block):
                # Nothing is stored there: the provider knows no item that it has not sealed.
                case own, {"item": {"encrypted_content": str(sealed)} as item} if sealed:
                    return f"{own}\t{dumps(item)}"
                case _:
                    return ""
        case ToolCallBlock():
            return joined(
                type='"function_call"',
                call_id=dumps(short_id(block.call_id)),
                name=dumps(tool_name(block.name)),
                arguments=dumps(sendable_arguments(block.arguments)),
            )
        case FileBlock():
            return ""  # no answer holds one


def _message(text: str, phase: object) -> str:
    content = listed([joined(type='"output_text"', text=dumps(text))])
    fields = {"type": '"message"', "role": '"assistant"', "content": content}
    if isinstance(phase, str):
        fields["phase"] = dumps(phase)
    return joined(**fields)


def _content(content: tuple[Block, ...]) -> str:
    """The parts of a message: one with all its words, or in between files one for each block."""
    return listed(parts(content, _file, _text) if has_files(content) else [_text(spoken(content))])


def _output(result: ToolResult) -> str:
    """What came of a call; the protocol has no other way than words to say that it failed."""
    failed = "" if result.outcome == "ok" else f"[{result.outcome}] "
    if not has_files(result.content):
        return dumps(f"{failed}{spoken(result.content)}")
    return listed([*([_text(failed)] if failed else []), *parts(result.content, _file, _text)])


def _file(file: FileBlock) -> str:
    """An image or a document; "" for what the provider does not take."""
    if is_image(file):
        return joined(type='"input_image"', detail='"auto"', image_url=data_url(file))
    if is_pdf(file):
        return joined(type='"input_file"', filename=filename(file), file_data=data_url(file))
    return ""


def _text(words: str) -> str:
    return joined(type='"input_text"', text=dumps(words))
