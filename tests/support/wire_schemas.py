"""Which schemas providers bind an answer to, and what they say of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_KINDS = {"object", "array", "string", "integer", "number", "boolean", "null"}
_ANYWHERE = {"type", "enum", "const", "anyOf", "$ref", "$defs", "description", "title"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OPENAI = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"pattern", "format"},
    "integer": _NUMBERS,
    "number": _NUMBERS,
}
_ANTHROPIC = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems"},
    "string": {"format"},
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def openai_refusal(name: str, schema: Schema, *, strict: bool) -> str:
    """Why OpenAI refuses it; "" when it takes it."""
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        return f"Invalid 'name': {name}"
    if schema.get("type") != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got {schema.get('type')!r}"
    for part in _parts(schema) if strict else ():
        properties = part.get("properties", {})
        if fault := _unknown(part, _OPENAI, _FORMATS):
            return fault
        if "object" in _kinds(part) and set(part.get("required", [])) != set(properties):
            return "'required' is required to be supplied and to be an array including every key in properties"
        if "$ref" in part and len(part) > 1:
            return "$ref cannot have keywords beside it"
    if strict and _levels(schema, schema, 0) > 10:
        return "levels of nesting exceed the limit of 10"
    return ""


def anthropic_refusal(schema: Schema) -> str:
    """Why Anthropic refuses it; "" when it takes it."""
    parts = list(_parts(schema))
    for part in parts:
        if fault := _unknown(part, _ANTHROPIC, _FORMATS | {"uri"}):
            return fault
        if part.get("minItems", 0) not in (0, 1):
            return "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    if _levels(schema, schema, 0) > 100:
        return "Recursive schemas are not supported"
    if sum(len(part.get("properties", {})) - len(part.get("required", [])) for part in parts) > 24:
        return "Schemas contains too many optional parameters"
    if sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts) > 16:
        return "Schemas contains too many parameters with union types"
    return ""


def _kinds(part: Schema) -> set[str]:
    kinds = part.get("type", [])
    return set(kinds) if isinstance(kinds, list) else {kinds}


def _unknown(part: Schema, keywords: dict[str, set[str]], formats: set[str]) -> str:
    """The first thing in `part` that the provider does not know."""
    if not isinstance(part, dict):
        return f"{part!r} is not of type 'object'"
    kinds = _kinds(part)
    allowed = _ANYWHERE.union(*(keywords.get(kind, set()) for kind in kinds))
    if fault := next(iter(part.keys() - allowed), ""):
        return f"For {sorted(kinds)} types, property {fault!r} is not supported"
    if not part.keys() & {"type", "anyOf", "enum", "const", "$ref"} or kinds - _KINDS:
        return f"schema must have a 'type' key: {part}"
    if "object" in kinds and part.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false"
    if "array" in kinds and "items" not in part:
        return "array schema missing items"
    if any(isinstance(value, (dict, list)) for value in part.get("enum", [])):
        return "enum values must be primitive"
    if part.get("format", "date") not in formats:
        return f"'{part['format']}' is not a valid format"
    return ""


def _parts(part: Any) -> Iterator[Any]:
    yield part
    for inner in _inner(part):
        yield from _parts(inner)
    for inner in part.get("$defs", {}).values() if isinstance(part, dict) else ():
        yield from _parts(inner)


def _inner(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        yield from part.get("properties", {}).values()
        yield from part.get("anyOf", [])
        if "items" in part:
            yield part["items"]


def _levels(part: Any, root: Schema, depth: int) -> int:
    """How deep it goes, references followed; more than 100 for one that holds itself."""
    if depth > 100 or not isinstance(part, dict):
        return depth
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        return _levels(root if name == "#" else root.get("$defs", {}).get(name), root, depth + 1)
    return max((_levels(inner, root, depth + 1) for inner in _inner(part)), default=depth)
