"""Request parameters: part of the head while they are registered, in the log, and proven with every request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.errors import PluginError
from flightlog.runtime.registry import Registry
from flightlog.testing import Bundle, FakeModel, words
from flightlog_hookspecs import Parameter
from flightlog_hookspecs.events import RequestHeader
from support.kernels import events_of, opened, verified
from support.wire_kernels import said

SEED = Parameter(name="seed", value=7)


def heads(path: Path) -> list[tuple[str, str]]:
    return [(event.reason, event.head.parameters) for event in events_of(path, RequestHeader)]


async def test_a_parameter_is_in_the_head_from_the_next_turn_until_it_is_taken_back(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([words("hi")] * 4)
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        await said(session, "one")
        async with session.register(Bundle(parameters=[SEED])):
            await said(session, "two")
            await said(session, "three")
        await said(session, "four")
    assert heads(path) == [("first", "{}"), ("parameters", '{"seed":7}'), ("parameters", "{}")]
    assert verified(path, FakeModel([]))


async def test_a_sessions_parameter_shadows_its_kernels_and_stands_beside_the_others(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([])
    async with (
        opened(path, model) as kernel,
        kernel.session("s", model="fake:m") as session,
        kernel.register(Bundle(parameters=[SEED, Parameter(name="user", value="u")])),
        session.register(Bundle(parameters=[Parameter(name="seed", value=None)])),
    ):
        await said(session, "one")
    assert heads(path) == [("first", '{"seed":null,"user":"u"}')]


async def test_a_parameter_whose_name_is_taken_is_refused_and_nothing_of_its_plugin_stays(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.register(Bundle(parameters=[SEED])):
        with pytest.raises(PluginError, match=r"parameter 'seed' exists already: plugin 'Bundle' registered it"):
            kernel.register(Bundle(parameters=[Parameter(name="other", value=1), SEED]))
        assert list(kernel.registry.parameters) == ["seed"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seed": 7}, "was given {'seed': 7}, not a Parameter"),
        (Parameter(name="", value=1), "a parameter's name must be"),
        (Parameter(name="two words", value=1), "a parameter's name must be"),
        (Parameter(name="seed", value=float("nan")), "parameter 'seed' is not JSON"),
        (Parameter(name="seed", value={1: 2}), "parameter 'seed' is not JSON"),
        (Parameter(name="seed", value=[object()]), "parameter 'seed' is not JSON"),
        (Parameter(name="seed", value=2**64), "parameter 'seed' is not JSON"),
    ],
)
def test_what_is_no_parameter_is_refused_at_registration(wrong: Any, says: str, tmp_path: Path) -> None:
    with (
        pytest.raises(PluginError, match="plugin 'Bundle'") as refused,
        flightlog.sync.open_kernel(tmp_path / "a.db", discover=False) as kernel,
    ):
        kernel.register(Bundle(parameters=[wrong]))
    assert says in str(refused.value)


async def test_what_becomes_of_a_value_after_its_registration_changes_nothing(tmp_path: Path) -> None:
    path, value = tmp_path / "a.db", {"n": [1], "t": (2,)}
    async with (
        opened(path, FakeModel([])) as kernel,
        kernel.register(Bundle(parameters=[Parameter(name="p", value=value)])),
        kernel.session("s", model="fake:m") as session,
    ):
        value["n"] += [2]
        await said(session, "one")
    assert heads(path) == [("first", '{"p":{"n":[1],"t":[2]}}')]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)  # fmt: skip


@given(values=st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), JSON, max_size=4))
def test_the_head_holds_the_very_values_in_one_order_however_they_came(values: dict[str, Any]) -> None:
    texts = set()
    for names in (list(values), list(reversed(values))):
        outer = flightlog.runtime.plugins.load_plugins(
            discover=False,
            plugins=[
                Bundle(
                    adapters=[FakeModel([])], parameters=[Parameter(name=name, value=values[name]) for name in names]
                )
            ],
        )
        texts.add(Registry(outer).head("fake:m", "").parameters)
    (text,) = texts
    assert json.loads(text) == values
