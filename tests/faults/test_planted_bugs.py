"""Tests of the tests: each bug, planted in the real kernel, dies in the layer that is there for it, and soon."""

from __future__ import annotations

import layers
import pytest
from layers import Layer
from matrix import BUGS, PAGE, Bug, Plant, rows_of
from planted import acting, saving, saying

from flightlog.testing import faults
from flightlog.testing.faults import named, run_power_loss

OTHER_SEEDS = 4


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_dies_in_its_layer_within_its_budget(bug: Bug, capsys: pytest.CaptureFixture[str]) -> None:
    found = bug.hunt(bug.seed)
    with capsys.disabled():
        said = f"{bug.name}: {found.examples} examples in {bug.layer.__name__}, recorded {bug.examples}"
        print(f"\n{said}", end=" ")  # noqa: T201
    assert found.promise in bug.promises.split(), found
    assert found.examples <= bug.budget, f"found, but later than it used to be: {found}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_dies_with_other_seeds_too(bug: Bug, effort: int) -> None:
    if effort == 1:
        pytest.skip("one seed is enough for the quick profile")
    found = [bug.hunt(bug.seed + more) for more in range(1, OTHER_SEEDS + 1)]
    assert all(one.promise in ("", *bug.promises.split()) for one in found), found
    assert sum(bool(one.promise) for one in found) > OTHER_SEEDS // 2, found


@pytest.mark.parametrize(
    ("layer", "where"),
    [
        (layers.damage, "tools"),
        (layers.owners, "tools"),
        (layers.cancel, "siblings"),
        (layers.cancel, "a long book"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_layer_finds_nothing_in_a_kernel_without_a_bug(layer: Layer, where: str) -> None:
    """Those of the laboratory itself have tests of their own."""
    found = layer(where, 1)
    assert not found.promise, found
    assert found.examples > 20


def test_every_layer_is_the_one_that_some_bug_dies_in() -> None:
    needed = {bug.layer for bug in BUGS}
    assert {layer.__name__: layer in needed for layer in layers.LAYERS} == {
        layer.__name__: True for layer in layers.LAYERS
    }
    assert len(BUGS) == len({bug.name for bug in BUGS}) >= 20


def test_the_page_of_planted_bugs_lists_each_with_its_layer() -> None:
    page = PAGE.read_text()
    for bug in BUGS:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {bug.title} |"))
        assert f"| {bug.layer.__name__.replace('_', ' ')} |" in row, row
    assert len(rows_of({})) == len(BUGS)


def test_only_a_second_crash_finds_what_a_recovery_leaves_behind() -> None:
    for plant, where in (
        (saving.witness_of_what_a_killed_process_cached, "words"),
        (saying.words_under_the_last_owner_only, "cancelled"),
    ):
        with plant():
            report = run_power_loss(named(where), seed=1, points=120)
            assert not report.violations, report


@pytest.mark.parametrize("where", ["siblings", "interleaved"])
@pytest.mark.parametrize("plant", [acting.result_let_go_when_it_could_not_be_saved, acting.result_saved_a_moment_later])
def test_a_result_that_is_not_saved_is_found_whoever_works_beside_its_body(plant: Plant, where: str) -> None:
    """What ends once the file has failed owes nothing: that must not excuse those who could have been saved."""
    with plant():
        assert layers.io_errors(where, 3).promise in ("P2", "P3", "P9")


def test_a_reproducer_repeats_its_violation_and_finds_nothing_without_the_bug() -> None:
    with acting.repeated_after_a_crash():
        (found,) = run_power_loss(named("tools"), seed=1, points=400, first_only=True).violations
        again = eval(found.reproducer, vars(faults))
        assert (found.promise, found.how) in {(one.promise, one.how) for one in again.violations}
    assert not eval(found.reproducer, vars(faults)).violations
