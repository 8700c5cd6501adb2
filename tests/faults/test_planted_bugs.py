"""Tests of the tests: each bug, planted in the real kernel, is found by the layer that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import mutants
import pytest

from flightlog.testing import faults
from flightlog.testing.faults import Crash, Promise, Report, named, run_io_errors, run_power_loss

Plant = Callable[[], AbstractContextManager[None]]
Layer = Callable[..., Report]

BUGS: list[tuple[Plant, Layer, str, int, set[Promise]]] = [
    # the bug, its layer, on which script, within so many faults, against which promise
    (mutants.normal_everywhere, run_power_loss, "words", 40, {"P2", "P3"}),
    (mutants.normal_for_intents, run_power_loss, "tools", 150, {"P6"}),
    (mutants.acknowledged_before_the_commit, run_power_loss, "words", 50, {"P2"}),
    (mutants.tool_before_its_intent, run_power_loss, "tools", 150, {"P6"}),
    (mutants.witness_before_the_commit, run_power_loss, "words", 40, {"P3"}),
    (mutants.repeated_after_a_crash, run_power_loss, "tools", 150, {"P5"}),
    (mutants.storage_error_swallowed, run_io_errors, "words", 40, {"P2", "P3"}),
]


@pytest.mark.parametrize(
    ("plant", "layer", "script", "within", "promises"), BUGS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_bug_is_found_by_its_layer(
    plant: Plant, layer: Layer, script: str, within: int, promises: set[Promise]
) -> None:
    with plant():
        report = layer(named(script), seed=1, points=200, first_only=True)
    (found,) = report.violations
    assert found.promise in promises, found
    assert sum(report.faults.values()) <= within, f"found, but later than it used to be: {report}"


def test_only_a_second_crash_finds_a_witness_of_what_the_first_left_in_the_cache() -> None:
    """Rows that a killed process wrote are in memory only, until recovery has brought them to the disk."""
    with mutants.witness_of_what_a_killed_process_cached():
        assert not run_power_loss(named("words"), seed=1, points=150).violations
        report = run_power_loss(named("words"), seed=1, after=(Crash(66, "all"),), points=150, first_only=True)
    (found,) = report.violations
    assert found.promise == "P3", found
    assert "HeadMismatch" in found.how
    assert "Crash(66, 'all'), Crash(" in found.reproducer


def test_a_reproducer_repeats_its_violation_and_finds_nothing_without_the_bug() -> None:
    with mutants.repeated_after_a_crash():
        (found,) = run_power_loss(named("tools"), seed=1, points=200, first_only=True).violations
        again = eval(found.reproducer, vars(faults))
        assert (found.promise, found.how) in {(one.promise, one.how) for one in again.violations}
    assert not eval(found.reproducer, vars(faults)).violations
