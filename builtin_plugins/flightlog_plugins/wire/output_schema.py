"""The schema that an answer is to fit, as far as it is told to the provider.

Each provider binds its models to a part of JSON Schema only, and refuses requests with any other schema. So what
is not certain to be taken is not asked for: then the prompt asks alone, and whoever wants the answer judges it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import frozen

from flightlog_hookspecs import OUTPUT_SCHEMA, Head

_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_ANYWHERE: Final = frozenset({"type", "enum", "const", "anyOf", "$defs", "description", "title"})
_SILENT: Final = ("$schema", "$comment")
"""Keywords at the top that mean nothing for an answer, and that providers may refuse."""
_REFERENCE: Final = "#/$defs/"

PARTS_MAX: Final = 500
"""Schemas inside the schema, and values in its enumerations."""
DEPTH_MAX: Final = 10
"""How deep they may stand in each other, references followed: so none that holds itself fits."""


@frozen(kw_only=True)
class OutputSchema:
    """What is asked for: a name for the answer, and the schema that it is to fit."""

    name: str
    schema: dict[str, Any]

    @property
    def is_object(self) -> bool:
        """Whether the answer is an object, whatever it holds."""
        return self.schema.get("type") == "object"


def asked_for(head: Head, options: Mapping[str, str]) -> OutputSchema | None:
    """What the head asks for; None for nothing, and where the model's options say that the provider is not told."""
    value = json.loads(head.parameters).get(OUTPUT_SCHEMA)
    match value:
        case {"name": str(name), "schema": dict(schema)} if options.get("schema") != "off":
            told = {keyword: rule for keyword, rule in schema.items() if keyword not in _SILENT}
            return OutputSchema(name=name, schema=told)
        case _:
            return None


@frozen(kw_only=True)
class Subset:
    """The schemas that a provider binds answers to: keywords by type, formats, how much may be left open.

    All objects name all that may be in them; at most `optional_max` of it may be absent, and at most
    `unions_max` schemas allow for several kinds.
    """

    keywords: Mapping[str, frozenset[str]]
    formats: frozenset[str]
    items_min: frozenset[int] | None = None
    optional_max: int = 0
    unions_max: int = PARTS_MAX

    def holds(self, schema: Mapping[str, Any]) -> bool:
        """Whether `schema`, which is a sound one, is in it beyond doubt."""
        definitions = schema.get("$defs", {})
        if schema.get("type") != "object":
            return False
        waiting: list[tuple[Any, int]] = [(schema, 1), *((part, 1) for part in definitions.values())]
        parts = optional = unions = 0
        while waiting:
            part, depth = waiting.pop()
            if depth > DEPTH_MAX or not isinstance(part, dict) or not self._takes(part):
                return False
            if "$defs" in part and part is not schema:
                return False
            parts += 1 + len(part.get("enum", ()))
            optional += len(part.get("properties", {})) - len(part.get("required", ()))
            unions += "anyOf" in part or isinstance(part.get("type"), list)
            if parts > PARTS_MAX or optional > self.optional_max or unions > self.unions_max:
                return False
            waiting += [(inner, depth + 1) for inner in _inner(part, definitions)]
        return True

    def _takes(self, part: dict[str, Any]) -> bool:
        """Whether `part` itself fits, whatever is in it."""
        if "$ref" in part:
            return len(part) == 1
        kinds = part.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        properties = part.get("properties", {})
        return (
            set(kinds) <= _TYPES
            and part.keys() <= _ANYWHERE.union(*(self.keywords.get(kind, ()) for kind in kinds))
            and bool(kinds or part.keys() & {"anyOf", "enum", "const"})
            and ("object" in kinds) == ("properties" in part)
            and ("object" not in kinds or part.get("additionalProperties") is False)
            and set(part.get("required", ())) <= properties.keys()
            and ("array" in kinds) == ("items" in part)
            and ("format" not in part or part["format"] in self.formats)
            and (self.items_min is None or part.get("minItems", 0) in self.items_min)
            and not any(isinstance(value, (dict, list)) for value in (*part.get("enum", ()), part.get("const")))
        )


def _inner(part: dict[str, Any], definitions: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas in `part`, or the one it refers to; None for one that is elsewhere."""
    if reference := part.get("$ref"):
        yield definitions.get(reference.removeprefix(_REFERENCE)) if reference.startswith(_REFERENCE) else None
    yield from part.get("properties", {}).values()
    yield from part.get("anyOf", ())
    if "items" in part:
        yield part["items"]


_OBJECT: Final = frozenset({"properties", "required", "additionalProperties"})
_NUMBER: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
})  # fmt: skip

STRICT_OPENAI: Final = Subset(
    keywords={
        "object": _OBJECT,
        "array": frozenset({"items", "minItems", "maxItems"}),
        "string": frozenset({"format"}),
        "integer": _NUMBER,
        "number": _NUMBER,
    },
    formats=_FORMATS,
)
"""What OpenAI takes with `strict`."""

ANTHROPIC: Final = Subset(
    keywords={"object": _OBJECT, "array": frozenset({"items", "minItems"}), "string": frozenset({"format"})},
    formats=_FORMATS | {"uri"},
    items_min=frozenset({0, 1}),
    optional_max=24,
    unions_max=16,
)
"""What Anthropic takes; there is no other way to ask it."""
