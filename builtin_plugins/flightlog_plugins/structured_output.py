"""Answers in JSON that fit a schema, or no answer.

    async with session.register(StructuredOutput({"type": "object", "properties": {"legs": {"type": "integer"}}})):
        await session.followup("How many legs has a spider?")
        turn = await session.run()
        turn.json()                     # {"legs": 8}

Where the provider can bind its model to the schema, it is asked to; the prompt says what is wanted in any case.
When the model stops, its last words are judged. Words that do not fit are sent back with what is wrong, at most
`corrections` times a turn; then the turn ends as error "invalid_output". So a turn that completed holds what was
asked for.

Only turns whose head asks for this schema are judged: none that was under way when it was registered, and none in
which another schema stands in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import trio
from attrs import field, frozen

from flightlog_hookspecs import (
    OUTPUT_SCHEMA,
    Continue,
    Fail,
    Head,
    Hook,
    Parameter,
    PromptSection,
    StoppingTurn,
    hookimpl,
    json_of,
)
from flightlog_hookspecs.errors import UsageError

CODE: Final = "invalid_output"
"""The code of a turn whose answer still did not fit."""
FAULTS_MAX: Final = 5
"""As many faults of an answer are named."""
FAULT_MAX_CHARS: Final = 300
JUDGE_MAX_S: Final = 10.0
"""An answer that takes longer to judge does not fit."""
RANK: Final = 900
"""Behind the other sections: it is about the last words."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def _copied(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy that nobody else changes."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps({**schema}, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the schema of an output must be a JSON object: {error}") from None
    return copy


@frozen
class StructuredOutput:
    """A plugin that wants answers in JSON fitting `schema`, a JSON Schema 2020-12; `name` is what it is called.

    Raises `UsageError` when `schema` is none, or refers to what is not in it.
    """

    schema: Mapping[str, Any] = field(converter=_copied, repr=False)
    name: str = "answer"
    corrections: int = 2

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"the name of an output must be 1 to 64 letters, digits, '_' or '-', not {self.name!r}")
        if type(self.corrections) is not int or self.corrections < 0:
            raise UsageError(f"corrections must be a whole number from 0, not {self.corrections!r}")
        if fault := _fault(self.schema):
            raise UsageError(f"output {self.name!r}: its schema is not a JSON Schema 2020-12: {fault}")

    def wanted(self) -> str:
        """What the model is told about its answer."""
        return (
            f"# Output: {self.name}\n\n"
            "When you are done, your last words must be one JSON value that fits this JSON Schema, and nothing "
            f"else: no other words before or behind it.\n\n{_compact(self.schema)}"
        )

    def faults(self, text: str | Sequence[str]) -> list[str]:
        """What is wrong with `text` as an answer, the first few faults; empty when it fits."""
        try:
            value = json_of(text)
        except ValueError as error:
            return [f"it is not JSON: {error}"]
        try:
            return list(islice(self._violations(value), FAULTS_MAX))
        except Exception as error:  # a hook that fails lets the turn pass, and this answer must not
            return [f"it cannot be judged: {error!r:.{FAULT_MAX_CHARS}}"]

    async def judge(self, turn: StoppingTurn) -> Continue | Fail | None:
        """The hook: what becomes of a turn that stops with these words."""
        if not self._is_asked_for(turn.head):
            return None
        faults, words = ["it takes too long to judge"], turn.blocks or turn.text
        with trio.move_on_after(JUDGE_MAX_S):
            faults = await trio.to_thread.run_sync(partial(self.faults, words), abandon_on_cancel=True)
        if not faults:
            return None
        wrong = "; ".join(faults)
        if turn.continued < self.corrections:
            return Continue(f"Your answer does not fit: {wrong}. Answer again with the whole JSON value alone.")
        return Fail(CODE, f"the answer is not the JSON that was asked for, after {turn.continued} corrections: {wrong}")

    @hookimpl
    def register_parameters(self, register: Callable[[Parameter], None]) -> None:
        """Ask the provider for it."""
        register(Parameter(name=OUTPUT_SCHEMA, value=self._parameter()))

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        """Tell the model."""
        register(PromptSection(name="output", rank=RANK, render=self.wanted))

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        """Judge what it says."""
        register(Hook(point="turn_stopping", body=self.judge, name=f"output {self.name}", limit_s=2 * JUDGE_MAX_S))

    def _parameter(self) -> dict[str, object]:
        return {"name": self.name, "schema": self.schema}

    def _is_asked_for(self, head: Head) -> bool:
        asked: dict[str, object] = json.loads(head.parameters)
        return asked.get(OUTPUT_SCHEMA) == self._parameter()

    def _violations(self, value: object) -> Iterator[str]:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        # An empty registry: nothing is ever fetched to judge an answer.
        for error in Draft202012Validator(self.schema, registry=Registry()).iter_errors(value):
            rule = "/".join(map(str, error.absolute_schema_path))
            yield f"{error.json_path}: {error.message:.{FAULT_MAX_CHARS}} (rule {rule:.{FAULT_MAX_CHARS}})"


def _compact(schema: object) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _fault(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema, "" when nothing is."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {error.message:.{FAULT_MAX_CHARS}}"
    root = DRAFT202012.create_resource(schema)
    resolver = Registry().with_resource("", root).resolver()
    waiting = [root]
    while waiting:
        resource = waiting.pop()
        waiting += resource.subresources()
        reference = resource.contents.get("$ref") if isinstance(resource.contents, dict) else None
        try:
            if reference is not None:
                resolver.lookup(reference)
        except Unresolvable:
            return f"it refers to {reference!r}, which is not in it"
    return ""
