"""Tests of the tests: each bug, planted in the real kernel, is found by the layer that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import mutants
import pytest

from flightlog.testing.faults import Promise, Report, named, run_io_errors, run_power_loss

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


def test_a_reproducer_repeats_its_violation_and_finds_nothing_without_the_bug() -> None:
    with mutants.repeated_after_a_crash():
        (found,) = run_power_loss(named("tools"), seed=1, points=200, first_only=True).violations
        again = eval(found.reproducer, vars(__import__("flightlog.testing.faults", fromlist=["*"])))
        assert found in again.violations
    assert not eval(found.reproducer, vars(__import__("flightlog.testing.faults", fromlist=["*"]))).violations
