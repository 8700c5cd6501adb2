"""The real kernel in the fault laboratory: whatever happens to its disk, every promise is kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from attrs import frozen

from flightlog.testing.faults import SCRIPTS, Failing, Order, Script, random_script, run_io_errors, run_power_loss
from flightlog_plugins.failover import Failover
from flightlog_plugins.retry import Retry


@frozen
class Boxed(Failing):
    """One whose failures are met by the plugins in the box."""

    @property
    def steady(self) -> bool:
        """Which models rest is forgotten in a crash, so the next one asked may be another."""
        return not self.moves

    def advisers(self) -> Sequence[object]:
        retry = Retry(random=lambda: 0.5)
        failover = Failover(["diligent:m", "diligent:other"], retry=retry, now=trio.current_time)
        return [retry, failover] if self.moves else [retry]


BOXED = [
    Boxed(f"boxed {name}", (("s", (Order("try", ((("write", "a"),),)),)),), moves=name == "failover")
    for name in ("retry", "failover")
]
ALL = [*SCRIPTS, *BOXED, *(random_script(seed) for seed in range(1))]
scripts = pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)


@scripts
def test_power_lost_anywhere_and_again_while_recovering_breaks_no_promise(script: Script, effort: int) -> None:
    report = run_power_loss(script, seed=effort, points=60 * effort, nested=4 * effort)
    assert not report.violations, report
    assert set(report.faults) >= {"lost", "all", "prefix", "file", "subset"}
    assert report.images > report.drives > 5


def test_power_lost_while_the_file_is_created_breaks_no_promise(effort: int) -> None:
    report = run_power_loss(SCRIPTS[0], points=150 * effort, from_nothing=True)
    assert not report.violations, report


@scripts
def test_a_disk_that_fails_in_any_way_breaks_no_promise(script: Script, effort: int) -> None:
    report = run_io_errors(script, seed=effort, points=10 * effort)
    assert not report.violations, report
    assert report.refusals, "some of them were met"


def test_without_remembering_what_the_same_rows_came_to_the_verdict_is_the_same() -> None:
    remembering, forgetful = (run_power_loss(SCRIPTS[1], points=20, memo=memo) for memo in (True, False))
    assert (remembering.faults, remembering.images) == (forgetful.faults, forgetful.images)
    assert remembering.drives < forgetful.drives == forgetful.images
    assert remembering.violations == forgetful.violations == []
