"""From typed functions to schemas: what is offered to the model, and what is refused when it is registered."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from attrs import frozen
from jsonschema import Draft202012Validator

from flightlog.core import canonical
from flightlog.core.tool_schema import DIALECT, PreparedTool, prepare
from flightlog_hookspecs import Done, NotDone, Tool, ToolContext, tool
from flightlog_hookspecs.errors import UsageError


@dataclass
class Point:
    """A point."""

    x: float
    y: float = 0.0


@frozen
class Box:
    corner: Point
    label: str = ""


class Options(TypedDict, total=False):
    depth: int


class Range(NamedTuple):
    low: int
    high: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Tree:
    kids: list[Tree]


def prepared(body: Callable[..., Any], **options: Any) -> PreparedTool:
    return prepare(Tool(body=body, **options), "plugin", "1.0")


def schema_of(annotation: Any) -> Any:
    """The schema of a parameter annotated like this."""

    def body(x: Any) -> None:
        """Do it."""

    body.__annotations__["x"] = annotation
    schema = json.loads(prepared(body).spec.parameters)
    Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["x"]
    return schema["properties"]["x"]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Literal[1, 2], {"enum": [1, 2]}),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (Range, {"$ref": "#/$defs/Range"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (list[Box], {"type": "array", "items": {"$ref": "#/$defs/Box"}}),
        (Options, {"$ref": "#/$defs/Options"}),
        (Tree, {"$ref": "#/$defs/Tree"}),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[str, msgspec.Meta(description="an ISO date", pattern="^[0-9-]+$")],
            {"type": "string", "description": "an ISO date", "pattern": "^[0-9-]+$"},
        ),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Decimal, {"type": "string", "format": "decimal"}),
    ],
)
def test_an_annotation_becomes_a_schema(annotation: Any, schema: Any) -> None:
    found = schema_of(annotation)
    assert {key: sorted(map(repr, value)) if isinstance(value, list) else value for key, value in found.items()} == {
        key: sorted(map(repr, value)) if isinstance(value, list) else value for key, value in schema.items()
    }


def order(context: ToolContext, item: str, count: int = 1, *, box: Box | None = None, tags: list[str] = []) -> str:  # noqa: B006
    """Order an item.

    Only what is in stock.

    Args:
        context: the call
        item: what to order
        count: how many of it
        tags: words to find it by
        absent: there is no such parameter

    """
    return f"{context} {item} {count} {box} {tags}"


def test_a_typed_function_with_a_docstring_is_all_a_tool_needs() -> None:
    made = prepare(tool(order), "shop", "2.1")
    assert made.wants_context
    assert (made.plugin, made.plugin_version) == ("shop", "2.1")
    assert made.spec.name == "order"
    assert made.spec.description == "Order an item.\n\nOnly what is in stock."
    assert json.loads(made.spec.parameters) == {
        "$schema": DIALECT,
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "what to order"},
            "count": {"type": "integer", "default": 1, "description": "how many of it"},
            "box": {"anyOf": [{"$ref": "#/$defs/Box"}, {"type": "null"}], "default": None},
            "tags": {
                "type": "array",
                "items": {"type": "string"},
                "default": [],
                "description": "words to find it by",
            },
        },
        "required": ["item"],
        "additionalProperties": False,
        "$defs": {
            "Box": {
                "title": "Box",
                "type": "object",
                "properties": {"corner": {"$ref": "#/$defs/Point"}, "label": {"type": "string", "default": ""}},
                "required": ["corner"],
            },
            "Point": {
                "title": "Point",
                "description": "A point.",
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
                "required": ["x"],
            },
        },
    }


def test_the_same_function_always_gives_the_same_bytes() -> None:
    assert prepared(order).spec == prepared(order).spec


@pytest.mark.parametrize(
    "docstring",
    [
        "Order.\n\n:param item: what to order\n:type item: str",
        "Order.\n\nParameters\n----------\nitem : str\n    what to order\n",
        "Order.\n\nArgs:\n  item (str): what to order",
        "Order.\n\n@param item: what to order",
    ],
)
def test_every_common_style_of_docstring_describes_its_parameters(docstring: str) -> None:
    def body(item: str) -> None: ...

    body.__doc__ = docstring
    made = prepared(body)
    assert json.loads(made.spec.parameters)["properties"]["item"]["description"] == "what to order"
    assert made.spec.description == "Order."


def test_a_description_of_its_own_goes_before_the_docstring() -> None:
    assert prepared(order, description="Buy.").spec.description == "Buy."


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def ping() -> None:
        """Ping."""

    schema = json.loads(prepared(ping).spec.parameters)
    assert (schema["properties"], schema["required"]) == ({}, [])


def test_two_classes_of_one_name_are_kept_apart() -> None:
    @dataclass
    class Arguments:
        a: int

    made = schema_of(Arguments)
    assert made["$ref"].startswith("#/$defs/")


def test_an_explicit_schema_is_offered_verbatim() -> None:
    given = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"enum": ("x", "y")}}, "required": ("b",)}
    made = prepared(lambda **arguments: None, name="t", description="d", parameters=given)
    assert made.spec.parameters == canonical.dumps(canonical.plain(given))
    assert not made.wants_context


def test_an_explicit_schema_may_refer_to_its_own_parts() -> None:
    parameters = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/tree"}, "other": {"$ref": "#named"}},
        "$defs": {
            "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            "named": {"$anchor": "named", "type": "integer"},
        },
    }
    made = prepared(lambda **arguments: None, name="t", description="d", parameters=parameters)
    assert made.arguments('{"tree":[[],[[]]],"other":1}') == {"tree": [[], [[]]], "other": 1}


def untyped(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Do it."""


def undescribed(x: int) -> None: ...


def positional(x: int, /) -> None:
    """Do it."""


def variadic(*items: int) -> None:
    """Do it."""


def open_ended(**options: int) -> None:
    """Do it."""


def unresolvable(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do it."""


def malformed(x: "list[") -> None:  # type: ignore[syntax]  # noqa: F722
    """Do it."""


def opaque(x: complex) -> None:
    """Do it."""


def private(__c: int = 0) -> None:  # noqa: PYI063
    """Do it."""


def not_a_number(x: float = float("nan")) -> None:
    """Do it."""


def late_context(x: int, context: ToolContext) -> None:
    """Do it."""


def fine(x: int) -> None:
    """Do it."""


async def asynchronous(x: int) -> None:
    """Do it."""


def looks(context: ToolContext, arguments: object) -> NotDone:
    return NotDone()


def two_parameters(x: int, y: int = 0) -> None:
    """Do it."""


def in_a_transaction(context: ToolContext) -> None:
    """Do it."""


async def later_in_a_transaction(context: ToolContext) -> None:
    """Do it."""


SHOP: dict[str, object] = {"effect": "transactional", "database": "shop.db"}

around: list[object] = []
around.append(around)


TWO_PARAMETERS = {"type": "object", "properties": {"x": {}, "y": {}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (untyped, {}, "parameter 'x' has no type annotation"),
        (undescribed, {}, "has no description: give its function a docstring"),
        (positional, {}, "parameter 'x' cannot be passed by name"),
        (variadic, {}, "parameter 'items' cannot be passed by name"),
        (open_ended, {}, r"\*\*options needs an explicit schema"),
        (unresolvable, {}, "an annotation cannot be resolved: name 'Nowhere' is not defined"),
        (malformed, {}, "an annotation cannot be resolved: .*list"),
        (opaque, {}, "its signature has no JSON Schema: type <class 'complex'> is not supported"),
        (private, {}, "its signature has no JSON Schema: .*__c"),
        (not_a_number, {}, "nan is not a JSON number"),
        (late_context, {}, "the ToolContext parameter must come first"),
        (max, {}, "its body's signature cannot be read"),
        (5, {"name": "t"}, "its body 5 is not callable"),
        (lambda: None, {}, "tool name '<lambda>' must be 1 to 64 ASCII letters"),
        (fine, {"name": ""}, "tool name '' must be"),
        (fine, {"name": "a b"}, "tool name 'a b' must be"),
        (fine, {"name": "1st"}, "tool name '1st' must be"),
        (fine, {"name": "größe"}, "must be 1 to 64 ASCII letters"),
        (fine, {"name": "x" * 65}, "must be 1 to 64 ASCII letters"),
        (fine, {"description": 5}, "its description must be a string"),
        (fine, {"timeout_s": 0}, "timeout_s must be a positive number"),
        (fine, {"timeout_s": float("nan")}, "timeout_s must be a positive number"),
        (fine, {"timeout_s": "60"}, "timeout_s must be a positive number"),
        (fine, {"mode": "serial"}, "mode must be one of .*'parallel', 'exclusive'.*, not 'serial'"),
        (fine, {"effect": "none"}, "effect must be one of .*'external'.*, not 'none'"),
        (fine, {"isolation": "docker"}, "isolation must be one of .*'process'.*, not 'docker'"),
        (fine, {"reconcile": 5}, "its reconcile 5 is not callable"),
        (fine, {"reconcile": max}, "its reconcile's signature cannot be read"),
        (fine, {"reconcile": lambda arguments: None}, r"cannot be called as reconcile\(context, arguments\)"),
        (fine, {"reconcile": lambda context, arguments, more: None}, r"reconcile\(context, arguments\): .*'more'"),
        (fine, {"precheck": 5}, "its precheck 5 is not callable"),
        (fine, {"precheck": max}, "its precheck's signature cannot be read"),
        (fine, {"precheck": lambda: None}, r"cannot be called as precheck\(\*\*arguments\).*'x'"),
        (fine, {"precheck": lambda context: None}, r"cannot be called as precheck\(\*\*arguments\).*'x'"),
        (fine, {"precheck": lambda x, y: None}, r"cannot be called as precheck\(\*\*arguments\).*'y'"),
        (
            two_parameters,
            {"precheck": lambda x, y: None, "parameters": TWO_PARAMETERS},
            r"cannot be called as precheck\(\*\*arguments\).*'y'",
        ),
        (fine, {"refreshable": 1, "effect": "read"}, "refreshable must be True or False"),
        (fine, {"refreshable": True}, "only a tool with effect='read' is refreshable, not 'external'"),
        (fine, {"key_arguments": "x"}, "key_arguments must be names of parameters, not 'x'"),
        (fine, {"key_arguments": [1]}, r"key_arguments must be names of parameters, not \[1\]"),
        (fine, {"key_arguments": 5}, "key_arguments must be names of parameters, not 5"),
        (fine, {"key_arguments": ("x", "z")}, "key_arguments name 'z', which is none of its parameters"),
        (fine, {"effect": "transactional"}, "needs database=, the path of its SQLite file, not None"),
        (fine, {"effect": "transactional", "database": ""}, "needs database="),
        (fine, {"effect": "transactional", "database": 5}, "needs database="),
        (fine, {"effect": "transactional", "database": "a.db"}, "takes `context` first"),
        (fine, {"effect": "write", "database": "a.db"}, "only effect='transactional' has a database, not 'write'"),
        (in_a_transaction, {"isolation": "process"} | SHOP, "a transactional body is a sync function"),
        (in_a_transaction, {"reconcile": looks} | SHOP, "a transactional tool has no reconcile"),
        (later_in_a_transaction, SHOP, "a transactional body is a sync function"),
        (asynchronous, {"isolation": "process"}, "needs a sync function importable by name"),
        (lambda: None, {"isolation": "process", "name": "t"}, "needs a sync function importable by name"),
        (fine, {"parameters": {"type": "array"}}, "must be a schema of type 'object'"),
        (fine, {"parameters": {}}, "must be a schema of type 'object'"),
        (fine, {"parameters": True}, "must be a schema of type 'object'"),
        (fine, {"parameters": [1]}, "are not a JSON Schema 2020-12"),
        (fine, {"parameters": {"type": "objekt"}}, "are not a JSON Schema 2020-12: 'objekt'"),
        (fine, {"parameters": {"type": "object", "required": "x"}}, "are not a JSON Schema 2020-12: 'x'"),
        (fine, {"parameters": {"type": "object", "properties": {"x": {"pattern": "("}}}}, "is not a 'regex'"),
        (fine, {"parameters": {"type": "object", "x": {1, 2}}}, r"2020-12: \$.x: set is not a JSON value"),
        (fine, {"parameters": {"type": "object", "x": around}}, "nested deeper than 200"),
        (
            fine,
            {"parameters": {"type": "object", "$ref": "#/$defs/no"}},
            "refer to '#/\\$defs/no', which is not in them",
        ),
        (
            fine,
            {"parameters": {"type": "object", "properties": {"x": {"items": {"$ref": "#/$defs/no"}}}}},
            "refer to '#/\\$defs/no', which is not in them",
        ),
        (
            fine,
            {"parameters": {"type": "object", "properties": {"x": {"$ref": "http://localhost:9/schema"}}}},
            "refer to 'http://localhost:9/schema', which is not in them",
        ),
    ],
)
def test_a_tool_that_cannot_work_is_refused_when_it_is_registered(body: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        prepared(body, **options)
    assert "tool" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "wants_context"),
    [
        ({"precheck": lambda x, y: None}, False),
        ({"precheck": lambda context, x, y: None}, True),
        ({"precheck": lambda **arguments: None}, False),
        ({"precheck": lambda context, **arguments: None}, True),
        ({"precheck": lambda x, y=1: None, "parameters": TWO_PARAMETERS}, False),
        ({"reconcile": looks}, False),
        ({"reconcile": lambda *both: Done("x")}, False),
        ({"effect": "read", "refreshable": True, "key_arguments": ["x"]}, False),
    ],
)
def test_what_stands_beside_a_body_may_take_what_the_body_takes(options: dict[str, Any], wants_context: bool) -> None:
    assert prepared(two_parameters, **options).precheck_wants_context is wants_context


def test_options_of_the_decorator_are_those_of_the_tool() -> None:
    @tool(effect="write", reconcile=looks, precheck=lambda x: None, key_arguments=("x",))
    def pay(x: int) -> None:
        """Pay."""

    assert (pay.reconcile, pay.key_arguments, pay.refreshable) == (looks, ("x",), False)
