"""Hunts from the command line and from pytest: what they find can be repeated, kept and judged again."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from planted import acting, saving

from flightlog.cli.fuzz import fuzz
from flightlog.testing.faults import Report, run_power_loss
from flightlog.testing.faults.fuzz import Chunk, Effort, chunks, hunt, page
from flightlog.testing.faults.golden import SUFFIX, Golden, keep
from flightlog.testing.faults.workloads import named
from flightlog_hookspecs.errors import UsageError

pytest_plugins = ["pytester"]

GOLDEN = sorted((Path(__file__).parent / "golden").glob(f"*{SUFFIX}"))
SMALL = Effort(points=20, draws=1, nested=0, faults=0, seconds=float("inf"))

SHOP = '''
import flightlog
from flightlog.testing import Bundle
from flightlog.testing.faults import Order, Script

class Shop(Script):
    times = 1

    def plugins(self, world):
        @flightlog.tool(effect="write")
        async def charge(context, task: str) -> str:
            """Charge a card.

            Args:
                context: the call
                task: the order to charge for
            """
            for _ in range(self.times):
                world.done(context, "charge", "write", {"task": task})
            return f"charged for {task}"

        return [*super().plugins(world), Bundle(tools=[charge])]

class Careless(Shop):
    times = 2

orders = (("session", (Order("pay 7", ((("charge", "7"),),)),)),)
shop, careless = Shop("shop", orders), Careless("careless", orders)
'''


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_what_crashes_left_behind_is_still_taken_up_rightly(path: Path) -> None:
    assert Golden.load(str(path)).broken() == []


@pytest.mark.parametrize("option", ["--table", "--state", "--save"])
def test_what_a_hunt_cannot_write_is_refused_before_it_begins(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").touch()
    for place in [tmp_path / "file" / "x"] + ([] if option == "--save" else [tmp_path / "nodir" / "x"]):
        done = CliRunner().invoke(fuzz, ["--rounds", "1", option, str(place)], standalone_mode=False)
        assert isinstance(done.exception, UsageError)
        assert f"{option}: {place} cannot be written" in str(done.exception)


def test_there_is_a_golden_file_of_every_mode() -> None:
    assert {path.name.split("-")[1] for path in GOLDEN} == {"lost", "all", "prefix", "file", "subset"}


def test_a_kept_file_breaks_its_promise_with_the_bug_and_keeps_it_without(tmp_path: Path) -> None:
    with acting.repeated_after_a_crash():
        (found,) = run_power_loss(named("tools"), seed=1, points=200, first_only=True).violations
        assert found.golden
        path = keep(found.golden, found.promise, str(tmp_path))
        assert found.promise in {one.promise for one in Golden.load(path).broken()}
    assert Golden.load(path) == found.golden
    assert Golden.load(path).broken() == []
    assert Path(path).stat().st_size < 25_000


def test_a_kept_file_whose_log_is_not_what_was_written_is_found() -> None:
    golden = Golden.load(str(GOLDEN[0]))
    promises = [
        {one.promise for one in evolve(golden, **changed).broken()}
        for changed in ({"digests": ["0" * 16] * 200}, {"rows": 10_000}, {"letters": 1})
    ]
    assert promises == [{"P1"}, {"P2"}, {"P2"}]


def test_a_file_that_is_no_kept_one_is_refused_by_name(tmp_path: Path) -> None:
    for content in ("", "{}", "[]", '{"files": {"db": "?"}}'):
        (path := tmp_path / "other").write_text(content)
        with pytest.raises(UsageError, match="other: is not what"):
            Golden.load(str(path))


def test_rounds_name_the_same_work_every_time_and_other_work_for_other_seeds() -> None:
    assert list(chunks(3, rounds=2)) == list(chunks(3, rounds=2))
    assert not set(chunks(3, rounds=2)) & set(chunks(5, rounds=2))
    assert list(chunks(7, ["words"], 2)) == [Chunk("words", 7), Chunk("words", 8)]


def test_a_hunt_goes_on_from_what_it_has_noted(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    first, done = hunt(SMALL, chunks(0, ["words"], 1), state=state)
    told: list[Chunk] = []
    again, twice = hunt(SMALL, chunks(0, ["words"], 2), state=state, watch=lambda chunk, _: told.append(chunk))
    assert (first.points, again.points) == (20, 40)
    assert twice == told == [*done, Chunk("words", 1)]
    assert len((tmp_path / "state").read_text().splitlines()) == 2


def test_a_hunt_ends_when_there_were_enough_points() -> None:
    total, done = hunt(SMALL, chunks(0, ["words"]), points=30)
    assert (total.points, len(done)) == (40, 2)
    assert "| **all** | **40** |" in page(total, done, "flightlog fuzz")


def test_a_report_survives_being_noted() -> None:
    with saving.normal_everywhere():
        report = run_power_loss(named("words"), seed=2, points=40, first_only=True)
    assert report.violations
    again = Report.from_json(json.loads(json.dumps(report.as_json())))
    assert again == report
    assert report.violations[0].reproducer in again.table()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_shop_of_mine.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_hunts_in_a_workload_of_ones_own_and_keeps_what_breaks(shop: Path) -> None:
    fine = CliRunner().invoke(fuzz, ["--workload", "a_shop_of_mine:shop", "--rounds", "1", "--table", "table.md"])
    assert "| **violations** | **0** |" in fine.output
    assert (
        "flightlog fuzz --profile quick --seed 0 --rounds 1 --workload a_shop_of_mine:shop"
        in (shop / "table.md").read_text()
    )
    bad = CliRunner().invoke(
        fuzz, ["--workload", "a_shop_of_mine:careless", "--rounds", "1", "--save", "kept", "--json"]
    )
    report = json.loads(bad.output)
    assert {promise for promise, _, _ in report["violations"]} == {"P5"}
    assert "named('a_shop_of_mine:careless')" in report["violations"][-1][2]
    (kept,) = report["kept"]
    again = CliRunner().invoke(fuzz, ["--replay", kept])
    assert "P5: charge" in again.output


def test_a_workload_that_is_none_is_refused_before_anything_runs() -> None:
    for name in ("nothing", "no_such_module:shop", "json:loads", "json:nothing"):
        with pytest.raises(UsageError, match=name):
            CliRunner().invoke(fuzz, ["--workload", name, "--rounds", "1"], catch_exceptions=False)


def test_the_fixture_fails_a_test_whose_plugins_break_a_promise(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        conftest="from flightlog.pytest_plugin import crash_everywhere",  # as the entry point of the package does
        a_shop_of_mine=SHOP,
        test_shop="""
            from a_shop_of_mine import careless, shop

            def test_fine(crash_everywhere):
                assert crash_everywhere(shop, points=20, faults=3).points == 23

            def test_careless(crash_everywhere):
                crash_everywhere(careless, points=20, faults=0)
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*P5: charge*took effect 2 times", "*run_power_loss(named('careless')*"])


def test_the_plugin_imports_no_laboratory_until_it_is_used() -> None:
    asked = "import sys, flightlog.pytest_plugin; print(*{'trio', 'apsw', 'flightlog.testing'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_package_offers_the_plugin_to_pytest() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"flightlog_faults": "flightlog.pytest_plugin"}
