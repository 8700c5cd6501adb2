"""A server's schemas as those of tools: read as JSON Schema 2020-12 whatever they call themselves.

One that is none, or refers to what is not in it, is not guessed at: any object is then let through, the model is
shown the schema in words, and the server judges the arguments, as it does anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

SHOWN_MAX_CHARS: Final = 4000
_INT_MAX: Final = 2**63 - 1


def parameters_of(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The parameters of a tool whose server gives `schema`, and what its description has to say about them."""
    parameters = {name: value for name, value in schema.items() if name != "$schema"} | {"type": "object"}
    if schema.get("type", "object") == "object" and _is_plain(parameters) and _is_sound(parameters):
        return parameters, ""
    shown = json.dumps(schema, ensure_ascii=False)
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
        waiting = [root]
        while waiting:
            resource = waiting.pop()
            waiting += resource.subresources()
            if isinstance(resource.contents, dict) and (reference := resource.contents.get("$ref")):
                resolver.lookup(reference)
    except (SchemaError, Unresolvable, RecursionError):
        return False
    return True
