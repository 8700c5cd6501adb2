"""From head and messages to the body of a Chat Completions request: one message each, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from flightlog_hookspecs import (
    AssistantMessage,
    Block,
    FileBlock,
    Head,
    Message,
    ThinkingBlock,
    ToolCallBlock,
    ToolResult,
    UserMessage,
)
from flightlog_plugins.wire.files import data_url, filename, has_files, is_image, is_pdf, parts, spoken
from flightlog_plugins.wire.fragments import block_state, fragment, messages_of, opened, tag
from flightlog_plugins.wire.json_text import dumps, joined, listed, sendable_arguments
from flightlog_plugins.wire.model_name import COMMON, COUNT, NUMBER, ModelName, Rule, one_of, parsed
from flightlog_plugins.wire.output_schema import STRICT_OPENAI, OutputSchema, asked_for
from flightlog_plugins.wire.stand_ins import short_id, tool_name

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Where servers put reasoning, which OpenAI's own never shows."""

_OPTIONS: Final[Mapping[str, Rule]] = {
    **COMMON,
    "max_tokens": COUNT,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "usage": one_of("on", "off"),
}


@frozen(kw_only=True)
class Dialect:
    """How a server's requests differ from the next one's.

    `max_tokens` is what the limit of an answer is called on the provider's own address; elsewhere it is
    called by its old name. With `thinks`, an answer that made calls never goes back without reasoning. Where
    not `sees`, no model is shown images or documents. Without `takes_schema`, it can be asked for some
    object in JSON, and not for one that fits a schema.
    """

    adapter: str
    efforts: tuple[str, ...]
    max_tokens: str = "max_tokens"
    thinks: bool = False
    sees: bool = True
    takes_schema: bool = True
    _rules: Mapping[str, Rule] = field(init=False)

    @_rules.default
    def _(self) -> Mapping[str, Rule]:
        rules = {**_OPTIONS, "effort": one_of(*self.efforts)}
        return {**rules, "thinking": one_of("enabled", "disabled")} if self.thinks else rules

    def model_name(self, head: Head) -> ModelName:
        """The model and its options."""
        return parsed(head.model, self._rules)

    def encoded(self, part: Head | Message) -> bytes:
        """The fragment of `part`: a head, or a message, to which a second line adds its reasoning."""
        match part:
            case Head():
                return self._head(part)
            case UserMessage():
                return fragment(_message("user", self._content(part.content)))
            case ToolResult():
                fields = {
                    "role": '"tool"',
                    "tool_call_id": dumps(short_id(part.call_id)),
                    "content": dumps(_result(part)),
                }
                return fragment(joined(**fields))
            case AssistantMessage():
                return self._answer(part)

    def body(self, fragments: Sequence[bytes]) -> bytes:
        """The request that `fragments` make."""
        head, *system = opened(fragments[0])[1].split("\n")
        messages = [*system, *map(self._merged, messages_of(fragments))]
        return f'{head[:-1]},"messages":{listed(messages)}}}'.encode()

    def _merged(self, lines: list[str]) -> str:
        """A message, with its reasoning in it."""
        message, *state = lines
        if not state and self.thinks and '"tool_calls":' in message:
            state = ['"reasoning_content":""']
        return f"{message[:-1]},{state[0]}}}" if state else message

    def _head(self, head: Head) -> bytes:
        model = self.model_name(head)
        options = model.options
        fields: dict[str, object] = {"model": model.name, "stream": True}
        if options.get("usage") != "off":
            fields["stream_options"] = {"include_usage": True}
        if limit := options.get("max_tokens"):
            fields["max_tokens" if "base_url" in options else self.max_tokens] = int(limit)
        for name in ("temperature", "top_p"):
            if name in options:
                fields[name] = float(options[name])
        if effort := options.get("effort"):
            fields["reasoning_effort"] = effort
        if thinking := options.get("thinking"):
            fields["thinking"] = {"type": thinking}
        wanted = asked_for(head, options)
        if wanted and wanted.is_object:
            fields["response_format"] = self._output(wanted)
        texts = {name: dumps(value) for name, value in fields.items()}
        if head.tools:
            texts["tools"] = listed(
                [
                    joined(
                        type='"function"',
                        function=joined(
                            name=dumps(tool.name), description=dumps(tool.description), parameters=tool.parameters
                        ),
                    )
                    for tool in head.tools
                ]
            )
        system = [_message("system", dumps(head.system))] if head.system else []
        return fragment(tag(self.adapter, options.get("base_url", "")), joined(**texts), *system)

    def _output(self, wanted: OutputSchema) -> dict[str, object]:
        if not self.takes_schema:
            return {"type": "json_object"}
        strict = STRICT_OPENAI.holds(wanted.schema)
        return {
            "type": "json_schema",
            "json_schema": {"name": wanted.name, "schema": wanted.schema, "strict": strict},
        }

    def _content(self, content: tuple[Block, ...]) -> str:
        """All the words of a user's message, or its parts where there are files to be shown."""
        if self.sees and has_files(content):
            return listed(parts(content, _file, _text))
        return dumps(spoken(content))

    def _answer(self, answer: AssistantMessage) -> bytes:
        words, wanted = answer.text, [_call(block) for block in answer.content if isinstance(block, ToolCallBlock)]
        # Content may be absent only where calls take its place.
        fields = {"role": '"assistant"', "content": dumps(words) if words or not wanted else "null"}
        if wanted:
            fields["tool_calls"] = listed(wanted)
        thoughts = [block for block in answer.content if isinstance(block, ThinkingBlock)]
        return fragment(joined(**fields), *self._reasoning(thoughts))

    def _reasoning(self, thoughts: Sequence[ThinkingBlock]) -> list[str]:
        """One line with all the reasoning that came from one kind of server."""
        found = [(state, block.text) for block in thoughts if (state := block_state(self.adapter, block))]
        if not found:
            return []
        (by, first), _ = found[0]
        name = first.get("field")
        text = "".join(words for (its, _), words in found if its == by)
        return [f'{by}\t"{name}":{dumps(text)}'] if name in REASONING_FIELDS else []


def _message(role: str, content: str) -> str:
    return joined(role=f'"{role}"', content=content)


def _file(file: FileBlock) -> str:
    """An image or a document; "" for what the provider does not take."""
    if is_image(file):
        return joined(type='"image_url"', image_url=joined(url=data_url(file)))
    if is_pdf(file):
        named = joined(filename=filename(file), file_data=data_url(file))
        return joined(type='"file"', file=named)
    return ""


def _text(words: str) -> str:
    return joined(type='"text"', text=dumps(words))


def _call(block: Block) -> str:
    assert isinstance(block, ToolCallBlock)
    function = joined(name=dumps(tool_name(block.name)), arguments=dumps(sendable_arguments(block.arguments)))
    return joined(id=dumps(short_id(block.call_id)), type='"function"', function=function)


def _result(result: ToolResult) -> str:
    """In words: the protocol has no other way to say that a call failed, and no place for files here."""
    text = spoken(result.content)
    return text if result.outcome == "ok" else f"[{result.outcome}] {text}"
