"""A server's schemas as those of tools: read as JSON Schema 2020-12 whatever they call themselves.

One that is none, refers to what is not in it, might take long to judge by, or holds a secret is not guessed at: any
object is then let through, the model is shown the schema in words, without the secret, and the server judges the
arguments, as it does anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from referencing._core import Resolver

SHOWN_MAX_CHARS: Final = 4000
SUBSCHEMAS_MAX: Final = 1000
"""Schemas within one, each counted as often as it is referred to."""
_INT_MAX: Final = 2**63 - 1

_SLOW: Final = frozenset(("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef"))
"""What one value can keep busy for ever."""
_INWARDS: Final = frozenset(("properties", "additionalProperties", "items", "prefixItems"))
"""These lead to a smaller value, and two of them never to the same one. All others look at a value once more."""
_OF_ONE: Final = frozenset(
    ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"),
)
_OF_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "properties", "dependentSchemas"))


def parameters_of(schema: Mapping[str, Any], redact: Callable[[str], str]) -> tuple[dict[str, Any], str]:
    """The parameters of a tool whose server gives `schema`, and what its description has to say about them."""
    said = json.dumps(schema, ensure_ascii=False)
    shown = redact(said)
    parameters = {name: value for name, value in schema.items() if name != "$schema"} | {"type": "object"}
    is_object = schema.get("type", "object") == "object"
    if shown == said and is_object and _is_plain(parameters) and _is_sound(parameters):
        return parameters, ""
    if len(shown) > SHOWN_MAX_CHARS:
        shown = f"{shown[:SHOWN_MAX_CHARS]}…"
    return {"type": "object"}, f"Its arguments, as its server describes them: {shown}"


def _is_plain(value: object) -> bool:
    """Whether the log can hold it."""
    match value:
        case dict():
            return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
        case list():
            return all(map(_is_plain, value))
        case bool() | None | str():
            return True
        case int():
            return -_INT_MAX - 1 <= value <= _INT_MAX
        case float():
            return value - value == 0  # neither infinite nor NaN
    return False


def _is_sound(schema: dict[str, Any]) -> bool:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
        root = DRAFT202012.create_resource(schema)
        resolver = Registry().with_resource("", root).resolver()
        waiting, schemas = [root], set()
        while waiting:
            resource = waiting.pop()
            schemas.add(id(resource.contents))
            waiting += resource.subresources()
            if isinstance(resource.contents, dict) and (reference := resource.contents.get("$ref")):
                resolver.lookup(reference)
        return _is_quick(schema, resolver, schemas)
    except (SchemaError, Unresolvable, RecursionError):
        return False


def _is_quick(schema: object, resolver: Resolver[Any], schemas: set[int]) -> bool:
    """Whether judging a value by a sound `schema` takes time that grows with the value, and no faster.

    `schemas` are the identities of all in it that are schemas; what else is referred to was never checked.
    """
    seen = 0
    # A schema, where it stands, and the way to it: the schemas above, each with whether the way leads inwards there,
    # None for a reference and nothing else.
    waiting: list[tuple[object, Resolver[Any], tuple[tuple[int, bool | None], ...]]] = [(schema, resolver, ())]
    while waiting:
        one, resolver, way = waiting.pop()
        seen += 1
        if seen > SUBSCHEMAS_MAX:
            return False
        if not isinstance(one, dict):
            continue
        above = [number for number, _ in way]
        if id(one) in above:
            steps = {inwards for _, inwards in way[above.index(id(one)) :]}
            if True in steps and False not in steps:
                continue  # it ends with the value
            return False
        if not _SLOW.isdisjoint(one):
            return False
        below = tuple(_below(one))
        waiting += [(inner, resolver, (*way, (id(one), inwards))) for inwards, inner in below]
        if "$ref" in one:
            found = resolver.lookup(one["$ref"])
            if id(found.contents) not in schemas:
                return False
            waiting.append((found.contents, found.resolver, (*way, (id(one), False if below else None))))
    return True


def _below(schema: dict[str, Any]) -> Iterator[tuple[bool, object]]:
    """The schemas right within `schema` that values are judged by, each with whether it is for a smaller value."""
    for keyword, value in schema.items():
        inner: list[object] = []
        if keyword in _OF_ONE:
            inner = [value]
        elif keyword in _OF_MANY:
            inner = list(value.values() if isinstance(value, dict) else value)
        for one in inner:
            yield keyword in _INWARDS, one
