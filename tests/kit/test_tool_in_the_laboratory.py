"""`script_of` puts a tool of anybody's into the fault laboratory, and the laboratory sees what the tool does wrong."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import trio
from attrs import evolve

from flightlog.pytest_plugin import CrashEverywhere
from flightlog.testing import faults
from flightlog.testing.faults import Script, named, run_power_loss, script_of
from flightlog.testing.faults.golden import Golden, keep
from flightlog_hookspecs import Tool, ToolContext, tool
from flightlog_hookspecs.errors import UsageError
from support.stock import shop_tool

CALLS = [{"order": "a", "cents": 5}, {"order": "b", "cents": 6}, {"order": "c", "cents": 7}]
COUNTED = count()


@tool(effect="write")
def pay(order: str, cents: int) -> str:
    """Pay for an order.

    Args:
        order: what is paid for
        cents: how much
    """
    return f"paid {cents} for {order}"


@tool(effect="idempotent", mode="parallel")
async def pay_later(context: ToolContext, order: str, cents: int) -> str:
    """Pay for an order, later.

    Args:
        context: the call
        order: what is paid for
        cents: how much
    """
    await trio.sleep(1)
    return f"will pay {cents} for {order}"


@tool(effect="idempotent")
async def counts(order: str, cents: int) -> str:
    """Pay for an order, and say how many were paid in all lives of this process.

    Args:
        order: what is paid for
        cents: how much
    """
    return f"payment {next(COUNTED)}"


@pytest.mark.parametrize("paying", [pay, pay_later], ids=lambda paying: paying.name)
def test_a_sync_or_async_tool_survives_every_crash(paying: Tool, crash_everywhere: CrashEverywhere) -> None:
    report = crash_everywhere(script_of(paying, *CALLS), points=60, nested=4, faults=4)
    assert report.points >= 60


def test_an_answer_that_depends_on_other_lives_is_found() -> None:
    report = run_power_loss(script_of(counts, *CALLS), seed=1, points=40, first_only=True)
    assert [violation.promise for violation in report.violations] == ["P7"]


def test_reproducers_find_a_script_by_the_name_that_it_was_given() -> None:
    assert script_of(pay, *CALLS, name="my_tests:shop").name == "my_tests:shop"


@pytest.mark.parametrize("texts", ["plain", 'it\'s, "quoted")\n', "naïve \U0001f600", "\\"])
def test_reproducers_make_the_script_of_a_module_s_tool_again(texts: str) -> None:
    script = script_of(pay, *CALLS, {"order": texts, "cents": 8})
    again = named(script.name)
    assert isinstance(again, Script)
    assert (again.name, again.sessions) == (script.name, script.sessions)


def test_the_line_that_breaks_it_again_runs_as_it_is_printed() -> None:
    (found,) = run_power_loss(script_of(counts, *CALLS), seed=1, points=40, first_only=True).violations
    report = eval(found.reproducer, vars(faults).copy())
    assert "P7" in {violation.promise for violation in report.violations}


def test_what_is_kept_of_it_is_judged_again_however_long_its_calls_are(tmp_path: Path) -> None:
    script = script_of(counts, *CALLS, {"order": "中" * 1000, "cents": 8})
    (found,) = run_power_loss(script, seed=1, points=40, first_only=True).violations
    assert found.golden
    kept = Golden.load(keep(found.golden, found.promise, str(tmp_path)))
    assert named(kept.workload).name == script.name


def test_of_a_tool_that_is_in_no_module_they_say_what_to_do() -> None:
    script = script_of(evolve(pay), *CALLS)
    with pytest.raises(UsageError, match="give script_of a name"):
        named(script.name)


def test_the_last_two_calls_are_made_side_by_side() -> None:
    def steps(script: Script) -> list[int]:
        ((_, (order,)),) = script.sessions
        return [len(step) for step in order.steps]

    assert steps(script_of(pay, *CALLS)) == [1, 2]
    assert steps(script_of(pay, *CALLS[:2])) == [1, 1]


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([], "at least one call"),
        ([CALLS[0], CALLS[0]], "no two that are the same"),
        ([{"order": "a"}], "do not fit"),
    ],
)
def test_calls_that_could_prove_nothing_are_refused(calls: list[dict[str, object]], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        script_of(pay, *calls)


def test_a_transactional_tool_is_refused_since_its_database_is_not_on_that_disk() -> None:
    with pytest.raises(UsageError, match="database is not on the laboratory's disk"):
        script_of(shop_tool(Path("shop.db")), {"item": "apple"})
