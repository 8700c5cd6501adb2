"""The schema of an answer as each provider is told it: where it binds its model, and never where it would refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Session
from flightlog.testing import Bundle
from flightlog_hookspecs import Head, Parameter
from flightlog_plugins.structured_output import StructuredOutput
from flightlog_plugins.wire.output_schema import ANTHROPIC, STRICT_OPENAI, asked_for
from support import wire_providers
from support.kernels import verified
from support.wire_kernels import ONCE, said, wired
from support.wire_providers import PROVIDERS, Provider, Wire
from support.wire_schemas import anthropic_refusal, openai_refusal
from support.wire_server import WireServer, served

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

LEGS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"legs": {"type": "integer"}},
    "required": ["legs"],
    "additionalProperties": False,
}
TOLD = {name: rule for name, rule in LEGS.items() if name != "$schema"}
LOOSE = {"type": "object", "properties": {"legs": {"type": "integer"}, "name": {"minLength": 2}}, "required": ["legs"]}
LISTED = {"type": "array", "items": {"type": "integer"}}


def output_of(provider: Provider, body: dict[str, Any]) -> Any:
    """What a request says about its answer; None for nothing."""
    match provider.name:
        case "anthropic":
            return body.get("output_config", {}).get("format")
        case "openai":
            return body.get("text", {}).get("format")
        case _:
            return body.get("response_format")


BOUND: dict[str, Any] = {
    "anthropic": {"type": "json_schema", "schema": TOLD},
    "openai": {"type": "json_schema", "name": "answer", "schema": TOLD, "strict": True},
    "openai-chat": {"type": "json_schema", "json_schema": {"name": "answer", "schema": TOLD, "strict": True}},
    "deepseek": {"type": "json_object"},
}
HINTED: dict[str, Any] = {
    "anthropic": None,
    "openai": {"type": "json_schema", "name": "answer", "schema": LOOSE, "strict": False},
    "openai-chat": {"type": "json_schema", "json_schema": {"name": "answer", "schema": LOOSE, "strict": False}},
    "deepseek": {"type": "json_object"},
}


@asynccontextmanager
async def wanting(
    provider: Provider, path: Path, wire: Wire, wanted: Any, **options: str
) -> AsyncIterator[tuple[Session, WireServer]]:
    """A session that wants answers that fit `wanted` from the provider's server."""
    async with (
        served(wire) as server,
        wired(path, provider.plugin) as kernel,
        kernel.session("s", model=provider.at(server.url, **options), limits=ONCE) as session,
        session.register(StructuredOutput(wanted)),
    ):
        yield session, server


@providers
async def test_a_schema_that_the_provider_binds_its_model_to_is_asked_for_and_needs_no_correction(
    provider: Provider, tmp_path: Path
) -> None:
    path, wire = tmp_path / "log.db", provider.wire([provider.says("It has eight.")])
    wire.bound = '{"legs": 8}'
    async with wanting(provider, path, wire, LEGS) as (session, server):
        turn = await said(session, "How many legs has a spider?")
    assert (wire.refused, turn.reason, turn.json()) == ([], "completed", {"legs": 8})
    assert [output_of(provider, asked.body) for asked in server.asked] == [BOUND[provider.name]]
    assert verified(path, provider.adapter())


@providers
async def test_tools_are_called_before_an_answer_that_is_bound(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.full, provider.says('{"legs": 8}')])
    async with wanting(provider, tmp_path / "log.db", wire, LEGS) as (session, _):
        turn = await said(session, "look")
    assert (wire.refused, turn.json()) == ([], {"legs": 8})


@providers
async def test_a_schema_that_it_might_refuse_is_a_hint_at_most_and_the_answer_is_corrected(
    provider: Provider, tmp_path: Path
) -> None:
    wire = provider.wire(
        [provider.says("Eight."), provider.says('{"legs": 8, "name": "x"}'), provider.says('{"legs": 8}')]
    )
    async with wanting(provider, tmp_path / "log.db", wire, LOOSE) as (session, server):
        turn = await said(session, "legs?")
    assert (wire.refused, turn.reason, turn.json()) == ([], "completed", {"legs": 8})
    assert [output_of(provider, asked.body) for asked in server.asked] == [HINTED[provider.name]] * 3


@providers
async def test_an_answer_that_is_no_object_is_asked_for_in_the_prompt_alone(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.says("[1, 2]")])
    async with wanting(provider, tmp_path / "log.db", wire, LISTED) as (session, server):
        turn = await said(session, "count")
    assert (wire.refused, turn.json()) == ([], [1, 2])
    assert output_of(provider, server.asked[0].body) is None
    assert '"integer"' in server.asked[0].raw.decode().replace("\\", "")


@providers
async def test_a_model_that_refuses_to_be_told_is_asked_in_the_prompt_alone(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.says('{"legs": 8}')])
    async with wanting(provider, tmp_path / "log.db", wire, LEGS, schema="off") as (session, server):
        assert (await said(session, "legs?")).json() == {"legs": 8}
    assert output_of(provider, server.asked[0].body) is None


@providers
async def test_from_provider_to_provider_the_same_schema_is_wanted(provider: Provider, tmp_path: Path) -> None:
    other = wire_providers.DEEPSEEK if provider.name != "deepseek" else wire_providers.ANTHROPIC
    path, output = tmp_path / "log.db", StructuredOutput(LEGS)
    wires = [each.wire([each.says('{"legs": 8}')]) for each in (provider, other)]
    async with (
        served(wires[0]) as first,
        served(wires[1]) as second,
        wired(path, provider.plugin, other.plugin) as kernel,
    ):
        for each, server in ((provider, first), (other, second)):
            async with kernel.session("s", model=each.at(server.url)) as session, session.register(output):
                assert (await said(session, "legs?")).json() == {"legs": 8}
    assert [wire.refused for wire in wires] == [[], []]
    assert output_of(other, second.asked[0].body) == BOUND[other.name]


@providers
@pytest.mark.parametrize(
    "value", ["json", {"name": "x"}, {"name": 1, "schema": {}}, {"name": "x", "schema": True}, None]
)
def test_a_parameter_that_is_no_schema_and_one_that_nobody_knows_are_not_sent(provider: Provider, value: Any) -> None:
    def head(**parameters: Any) -> bytes:
        return provider.adapter().encode(Head(adapter="a", model=provider.model, parameters=json.dumps(parameters)))

    assert head(output_schema=value, unheard_of=1) == head()


def _of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SOUND = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["x", None]}, {"$ref": "#/$defs/d"}]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b"]), inner, min_size=1, max_size=2).map(_of),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, min_size=1, max_size=2).map(lambda kinds: {"anyOf": kinds}),
    ),
    max_leaves=5,
)
"""Parts of schemas that every provider takes."""
ODD: list[dict[str, Any]] = [
    {"type": "array"}, {"type": "object"}, {"type": "string"}, {"type": "any"}, {"required": []}, {"required": ["z"]},
    {"additionalProperties": True}, {"additionalProperties": {"type": "string"}}, {"properties": {"z": {}}},
    {"enum": ["x", [1]]}, {"const": {}}, {"minItems": 2}, {"maxItems": 1}, {"minimum": 0}, {"minLength": 1},
    {"pattern": "a*"}, {"format": "regex"}, {"format": "uri"}, {"format": "date"}, {"default": None}, {"items": True},
    {"$ref": "#"}, {"$ref": "#/$defs/d"}, {"$ref": "#/properties/a"}, {"$ref": "#/$defs/e"}, {"allOf": [{}]},
    {"anyOf": [{}]}, {"not": {}}, {"$defs": {"f": {"minLength": 1}}}, {"prefixItems": [{}]}, {"$id": "urn:x"},
]  # fmt: skip
"""What some provider may refuse somewhere."""
KEYS = ("type", "properties", "required", "additionalProperties", "items", "enum", "anyOf")


def _parts(schema: Any) -> list[dict[str, Any]]:
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    inner += [schema["items"]] if "items" in schema else []
    return [schema, *(part for each in inner for part in _parts(each))]


SAMPLE: Any = _of({
    "it": _of({"x": {"type": "string"}, "y": {"enum": ["a", None]}}),
    "some": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/d"}]}},
}) | {"$defs": {"d": _of({"z": {"type": ["number", "null"]}})}}  # fmt: skip


@pytest.mark.parametrize("change", [*KEYS, *ODD], ids=str)
def test_no_change_to_a_sound_schema_that_a_provider_would_refuse_is_sent_to_it(change: str | dict[str, Any]) -> None:
    assert STRICT_OPENAI.holds(SAMPLE)
    assert ANTHROPIC.holds(SAMPLE)
    for place in range(len(_parts(SAMPLE))):
        schema = json.loads(json.dumps(SAMPLE))
        part = _parts(schema)[place]
        if isinstance(change, str):
            part.pop(change, None)
        else:
            part.update(change)
        assert not STRICT_OPENAI.holds(schema) or openai_refusal("answer", schema, strict=True) == ""
        assert not ANTHROPIC.holds(schema) or anthropic_refusal(schema) == ""


@given(sound=SOUND, definition=SOUND, data=st.data())
def test_whatever_is_sent_to_bind_a_model_is_taken(sound: Any, definition: Any, data: st.DataObject) -> None:
    schema: Any = json.loads(json.dumps(_of({"it": sound}) | {"$defs": {"d": definition}}))
    part = data.draw(st.sampled_from(_parts(schema)), "part")
    for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=1), "left out"):
        part.pop(key, None)
    part.update(data.draw(st.sampled_from([{}, *ODD]), "put in"))
    assert not STRICT_OPENAI.holds(schema) or openai_refusal("answer", schema, strict=True) == ""
    assert not ANTHROPIC.holds(schema) or anthropic_refusal(schema) == ""


@given(sound=SOUND, flat=st.sampled_from([{"type": "number"}, _of({"x": {"type": "number"}})]))
def test_what_all_providers_take_binds_their_models(sound: Any, flat: Any) -> None:
    schema = _of({"it": sound}) | {"$defs": {"d": flat}}
    assert STRICT_OPENAI.holds(schema)
    assert ANTHROPIC.holds(schema)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "format": "date"},
        {"type": ["string", "null"], "description": "perhaps"},
        {"type": "array", "items": {"anyOf": [{"type": "null"}, {"enum": ["a", 1, None]}]}},
        {"$ref": "#/$defs/point"},
        {"const": "a"},
    ],
)
def test_what_people_write_is_sent_to_bind_a_model(part: Any) -> None:
    numbers = {"x": {"type": "number"}, "y": {"type": "number"}}
    schema = {
        "type": "object",
        "title": "It",
        "properties": {"it": part},
        "required": ["it"],
        "additionalProperties": False,
        "$defs": {
            "point": {"type": "object", "properties": numbers, "required": ["x", "y"], "additionalProperties": False}
        },
    }
    assert STRICT_OPENAI.holds(schema)
    assert ANTHROPIC.holds(schema)


def test_a_schema_that_holds_itself_or_is_very_large_binds_no_model() -> None:
    node = _of({"next": {"$ref": "#/$defs/node"}})
    wide = _of({str(number): {"type": "string"} for number in range(600)})
    fork = {"anyOf": [{"$ref": "#/$defs/node"}] * 50}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        deep = _of({"in": deep})
    for schema in (node | {"$defs": {"node": node}}, node | {"$defs": {"node": fork}}, wide, deep):
        assert not STRICT_OPENAI.holds(schema)
        assert not ANTHROPIC.holds(schema)


def test_a_few_things_may_be_left_out_where_the_provider_allows_it() -> None:
    free = _of({str(number): {"type": "string"} for number in range(25)})
    assert not STRICT_OPENAI.holds(free | {"required": [str(number) for number in range(24)]})
    assert ANTHROPIC.holds(free | {"required": ["0"]})
    assert not ANTHROPIC.holds(free | {"required": []})


def test_a_parameter_in_a_bundle_is_as_good_as_the_plugin() -> None:
    value = {"name": "answer", "schema": LEGS}
    kept: list[Parameter] = []
    Bundle(parameters=[Parameter(name="output_schema", value=value)]).register_parameters(kept.append)
    wanted = asked_for(Head(adapter="a", model="m", parameters=json.dumps({kept[0].name: kept[0].value})), {})
    assert wanted is not None
    assert wanted.schema == TOLD
