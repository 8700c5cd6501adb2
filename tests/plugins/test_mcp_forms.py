"""What MCP servers say, in the forms that tools have: names, schemas, answers, secrets."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace as Part
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.tool_schema import prepare
from flightlog_hookspecs import FileBlock, TextBlock, Tool, ToolContext, text_of
from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.mcp_client import Http, McpServers, Stdio
from flightlog_plugins.mcp_client.names import check_server, tool_name
from flightlog_plugins.mcp_client.offering import ServerTool, ServerTools
from flightlog_plugins.mcp_client.results import output_of
from flightlog_plugins.mcp_client.schemas import parameters_of
from flightlog_plugins.mcp_client.servers import secrets_of

SERVERS = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,9}(_[A-Za-z0-9-]{1,5}){0,3}", fullmatch=True)
SCHEMAS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["object", "array"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "$ref", "$defs", "required", "$schema", "maximum", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def accepted(tool: Tool) -> None:
    """What the kernel says to it: raises when it refuses it."""
    prepare(tool, "mcp", "")


def tool(name: str = "t", schema: Any = None, description: str = "") -> ServerTool:
    return ServerTool(name=name, description=description, schema=schema or {}, only_reads=False)


async def call(name: str, context: ToolContext, /, **arguments: Any) -> Any:
    raise NotImplementedError


def offered_by(*tools: ServerTool) -> tuple[list[Tool], str]:
    found: list[Tool] = []
    plugin = ServerTools("s", "1", Stdio(["x"]), tools, call, str)
    plugin.register_tools(found.append)
    return found, plugin.complaint


@given(SERVERS, st.text(max_size=100), SCHEMAS.filter(lambda value: isinstance(value, dict)), st.text(max_size=20))
def test_whatever_a_server_offers_is_a_tool_that_the_kernel_takes(name: str, tool: str, schema: Any, said: str) -> None:
    offered = ServerTool(name=tool, description=said, schema=schema, only_reads=False)
    made = ServerTools(name, "1", Stdio(["x"]), (offered,), call, str)
    made.register_tools(accepted)


@given(st.tuples(SERVERS, st.text(max_size=100)), st.tuples(SERVERS, st.text(max_size=100)))
def test_no_two_tools_of_any_servers_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (tool_name(*one) == tool_name(*other)) == (one == other)


def test_a_legal_name_stays_as_it_is() -> None:
    assert tool_name("tickets", "create-all_2") == "tickets__create-all_2"


@pytest.mark.parametrize("name", ["", "a__b", "a_", "_a", "1a", "a b", "ä", "x" * 33, None])
def test_a_name_that_cannot_stand_before_tools_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="the name of an MCP server"):
        check_server(name)


def test_of_two_tools_of_one_name_the_first_counts() -> None:
    found, complaint = offered_by(tool(description="first"), tool(description="second"))
    assert [one.description for one in found] == ["first"]
    assert "more than one tool called s__t" in complaint


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {"A": {}}},
        {"properties": {"pattern": {"type": "string"}, "patternProperties": {}}},
        {"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"next": {"$ref": "#/$defs/N", "description": "more"}}}}},
        {"properties": {"inner": {"$ref": "#"}}, "additionalProperties": {"items": {"$ref": "#"}}},
        {"properties": {f"p{n}": {"anyOf": [{"type": "string"}, {"type": "null"}]} for n in range(300)}},
        {},
    ],
)
def test_a_schema_that_can_be_read_is_kept(schema: dict[str, Any]) -> None:
    kept = {name: value for name, value in schema.items() if name != "$schema"}
    assert parameters_of(schema, str) == (kept | {"type": "object"}, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"properties": {"a": {"$ref": "https://example.com/a.json"}}},
        {"properties": {"a": {"$ref": "#/$defs/gone"}}},
        {"properties": {"a": {"type": "integer", "exclusiveMinimum": True}}},
        {"properties": {"a": {"maximum": 2**70}}},
    ],
)
def test_a_schema_that_cannot_is_told_in_words(schema: dict[str, Any]) -> None:
    parameters, note = parameters_of(schema, str)
    assert parameters == {"type": "object"}
    assert json.dumps(schema) in note


def doubling(levels: int) -> dict[str, Any]:
    """A small schema that looks at one value 2 ** `levels` times."""
    defs: dict[str, Any] = {
        f"D{n}": {"allOf": [{"$ref": f"#/$defs/D{n + 1}"}, {"$ref": f"#/$defs/D{n + 1}"}]} for n in range(levels)
    }
    return {"properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": defs | {f"D{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
        {"properties": {"a": {"items": {"patternProperties": {"(a+)+$": {}}}}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"pattern": "(a+)+$"}}},
        {"properties": {"a": {"$ref": "#/x/a"}}, "x": {"a": {"pattern": "(a+)+$"}}},
        doubling(12),
        *({word: [{"$ref": "#"}]} for word in ("allOf", "anyOf", "oneOf")),
        {"not": {"$ref": "#"}},
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}}, "allOf": [{"properties": {"a": {"$ref": "#"}}}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B", "properties": {"a": {"$ref": "#/$defs/A"}}},
                                        "B": {"properties": {"a": {"$ref": "#/$defs/A"}}}}},
        {"items": {"$ref": "#"}, "contains": {"$ref": "#"}},
        {"allOf": [{"unevaluatedProperties": False}]},
    ],
)  # fmt: skip
def test_a_schema_that_could_keep_the_host_busy_is_told_in_words(schema: dict[str, Any]) -> None:
    parameters, note = parameters_of(schema, str)
    assert parameters == {"type": "object"}
    assert json.dumps(schema) in note


def test_the_subschemas_that_are_judged_by_are_bounded() -> None:
    assert parameters_of(doubling(7), str)[1] == ""
    assert parameters_of(doubling(8), str)[1] != ""


def block(encoded: str, mime: str = "image/png", kind: str = "image") -> Part:
    return Part(type=kind, data=encoded, mime_type=mime)


@pytest.mark.parametrize(
    ("structured", "texts", "shown"),
    [
        ({"a": 1}, [], '{"a": 1}'),
        ({"a": 1}, ['{"a":1}'], '{"a":1}'),
        ({"result": 5}, ["5"], "5"),
        ({"result": "five"}, ["five"], "five"),
        ({"a": 1}, ["One."], 'One.\n{"a": 1}'),
        (None, ["null"], "null"),
    ],
)
def test_structured_content_is_shown_unless_a_text_says_the_same(
    structured: object, texts: list[str], shown: str
) -> None:
    output = output_of([Part(type="text", text=text) for text in texts], structured, is_error=False)
    assert text_of(output.content) == shown


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (block("no base64!"), "no base64"),
        (block(""), "empty"),
        (Part(type="hologram"), "cannot be shown"),
        (Part(type="resource_link", uri="file:///a", name="a", mime_type=None, description=None), "file:///a: a"),
    ],
)
def test_what_cannot_be_shown_is_told_of(part: Part, says: str) -> None:
    (said,) = output_of([part], None, is_error=False).content
    assert isinstance(said, TextBlock)
    assert says in said.text


def test_a_file_without_a_media_type_is_one_all_the_same() -> None:
    resource = Part(uri="file:///over/there/cat.bin", blob=base64.b64encode(b"cat").decode(), mime_type=None)
    (file,) = output_of([Part(type="resource", resource=resource)], None, is_error=False).content
    assert file == FileBlock.of(b"cat", name="cat.bin", media_type="application/octet-stream")


def test_what_looks_like_a_secret_is_one_and_nothing_else() -> None:
    stdio = Stdio(["x"], env={"API_KEY": "key-12345678", "LANG": "en_US.UTF-8", "A_TOKEN": "short"})
    http = Http(
        "https://me:password1@h/mcp", headers={"Authorization": "Bearer abcdefghi", "Accept-Language": "english-please"}
    )
    assert list(secrets_of(stdio)) == ["key-12345678"]
    assert list(secrets_of(http)) == ["Bearer abcdefghi", "abcdefghi", "password1"]
    assert "12345678" not in repr(stdio)
    assert "password1" not in repr(http)
    assert "abcdefghi" not in repr(http)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stdio([]),
        lambda: Http("file:///etc/passwd"),
        lambda: Stdio(["x"], limit_s=10, connect_s=10),
        lambda: McpServers({"a": ["x"]}),
        lambda: McpServers({"a__b": Stdio(["x"])}),
        lambda: McpServers({}, wait_s=0),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
