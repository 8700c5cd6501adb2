"""Prices: what held as a request was sent stands with its answer, and nothing else of the request changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flightlog
from flightlog.errors import PluginError
from flightlog.testing import Attempts, Bundle, Cue, FakeModel, words
from flightlog_hookspecs import FailedRequest, Price, Switch, Usage, hook
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import AssistantMessage, RequestHeader
from support.kernels import SOON, events_of, opened, verified

CHEAP = Price(model="fake:*", currency="USD", input="1", output="2")
DEAR = Price(model="fake:m", currency="USD", input="10", output="20")


def said(text: str, input_tokens: int = 100, output_tokens: int = 10) -> list[Cue]:
    return [*words(text), Usage(input_tokens=input_tokens, output_tokens=output_tokens)]


async def usage(kernel: flightlog.Kernel, name: str = "s") -> list[tuple[Any, ...]]:
    """(turn, attempts, answers, cost, currency), by turn, what has no known cost first."""
    found = await kernel.query(
        "SELECT turn, attempts, answers, cost_pico, currency FROM usage WHERE session = ? ORDER BY turn, currency", name
    )
    return list(map(tuple, found.rows))


async def test_a_changed_price_changes_nothing_that_was_spent_and_no_byte_that_is_sent(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([said("one"), said("two"), said("three")])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        async with kernel.register(Bundle(prices=[CHEAP])):
            await session.followup("first")
            await session.run()
        assert await usage(kernel) == [(1, 1, 1, 120_000_000, "USD")]
        async with kernel.register(Bundle(prices=[DEAR])):
            await session.followup("second")
            await session.run()
        await session.followup("third")
        await session.run()
        assert await usage(kernel) == [
            (1, 1, 1, 120_000_000, "USD"),
            (2, 1, 1, 1_200_000_000, "USD"),
            (3, 1, 1, None, None),
        ]
    first, second, third = model.requests
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert len(events_of(path, RequestHeader)) == 1
    assert verified(path, model)


async def test_a_sessions_price_comes_before_its_kernels_and_the_first_that_fits_counts(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([said("one"), said("two")])
    async with (
        opened(path, model) as kernel,
        kernel.session("s", model="fake:m?x=1") as session,
        kernel.register(Bundle(prices=[CHEAP, DEAR])),
    ):
        await session.followup("first")
        await session.run()
        async with session.register(Bundle(prices=[DEAR])):
            await session.followup("second")
            await session.run()
    cheap, dear = [answer.price for answer in events_of(path, AssistantMessage)]
    assert cheap is not None
    assert dear is not None
    assert (cheap.input_pico, dear.input_pico) == (1_000_000, 10_000_000)


async def test_an_attempt_that_failed_is_counted_and_its_cost_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([Attempts([[Usage(input_tokens=7), ProviderError("server", "down")], said("up")])])
    async with opened(path, model, plugins=[SOON]) as kernel, kernel.session("s", model="fake:m") as session:
        async with session.register(Bundle(prices=[CHEAP])):
            await session.followup("go")
            await session.run()
        assert await usage(kernel) == [(1, 1, 0, None, None), (1, 1, 1, 120_000_000, "USD")]


async def test_two_currencies_in_a_turn_are_two_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    @hook("on_request_error")
    def failover(failed: FailedRequest) -> Switch:
        return Switch("other:n")

    broken: list[Cue] = [ProviderError("server", "down")]
    models = [FakeModel([said("one"), Attempts([broken])]), FakeModel([words("?"), said("two", 50, 0)], name="other")]
    prices = [CHEAP, Price(model="other:n", currency="EUR", input="0.5", output="1")]
    async with opened(path, models, plugins=[SOON]) as kernel, kernel.session("s", model="fake:m") as session:
        async with session.register(Bundle(prices=prices, hooks=[failover])):
            await session.followup("go")
            await session.run()
            await session.followup("go")
            await session.run()
        assert await usage(kernel) == [
            (1, 1, 1, 120_000_000, "USD"),
            (2, 1, 0, None, None),
            (2, 1, 1, 25_000_000, "EUR"),
        ]
        spent = {one.currency: one.cost_pico for one in kernel.read("s").usage()}
        assert spent == {"USD": 120_000_000, "EUR": 25_000_000, None: None}


async def test_an_answer_that_nobody_counted_did_not_cost_nothing(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "a.db", FakeModel([words("uncounted")])) as kernel,
        kernel.session("s", model="fake:m") as session,
        session.register(Bundle(prices=[CHEAP])),
    ):
        await session.followup("go")
        await session.run()
        assert await usage(kernel) == [(1, 1, 1, None, None)]


async def test_a_fork_pays_for_its_own_turns_only(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([said("one"), said("two")])
    async with opened(path, model) as kernel, kernel.register(Bundle(prices=[CHEAP])):
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("go")
            await session.run()
        await kernel.fork("s", 1, "f")
        assert await usage(kernel, "f") == []
        async with kernel.session("f") as fork:
            await fork.followup("on")
            await fork.run()
        assert await usage(kernel, "f") == [(2, 1, 1, 120_000_000, "USD")]
        assert await usage(kernel) == [(1, 1, 1, 120_000_000, "USD")]


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        (["fake:m"], "not a Price"),
        ([DEAR, DEAR], "price of 'fake:m' exists already"),
        ([Price(model="fake:m", currency="USD", input="1,5", output="2")], "input is the price of a million tokens"),
    ],
)
async def test_what_is_no_price_is_refused_as_it_is_registered(
    offered: list[Any], problem: str, tmp_path: Path
) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(PluginError, match=problem):
            kernel.register(Bundle(prices=offered))
        assert kernel.registry.price_of("fake:m") is None


async def test_a_cost_over_64_bits_is_not_known_and_leaves_the_other_rows_readable(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([*(said("much", 4000, 0) for _ in range(3)), said("little", 4000, 0)])
    absurd = Price(model="fake:absurd", currency="XXX", input="999999999", output="0")
    async with (
        opened(path, model) as kernel,
        kernel.session("s", model="fake:absurd") as session,
        kernel.register(Bundle(prices=[absurd, CHEAP])),
    ):
        for _ in range(3):
            await session.followup("once more")
            await session.run()
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        async with kernel.register(Bundle(prices=[CHEAP])):
            await session.followup("now")
            await session.run()
        assert [row[3] for row in await usage(kernel)] == [3_999_999_996_000_000_000] * 3 + [4_000_000_000]
        dear, cheap = sorted(kernel.read("s").usage(), key=lambda one: one.currency or "", reverse=True)
    assert (dear.currency, dear.cost_pico, cheap.cost_pico) == ("XXX", None, 4_000_000_000)
    assert verified(path, model)
