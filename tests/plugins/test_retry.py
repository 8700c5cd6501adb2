"""The retry plugin: when another attempt is made, and when it is not."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.errors import UsageError
from flightlog_hookspecs import FailedRequest, Failure, hooks
from flightlog_hookspecs.errors import FailureKind
from flightlog_plugins.retry import Retry

BUSY = Failure(model="a:x", kind="overloaded")


def failed(*failures: Failure, **changes: Any) -> FailedRequest:
    """The last of `failures`, as a hook is shown it."""
    failures = failures or (BUSY,)
    view = FailedRequest(
        session="s",
        turn=1,
        step=1,
        attempt=len(failures),
        model=failures[-1].model,
        failure=failures[-1].kind,
        message="planted",
        retryable=True,
        retry_after_s=None,
        attempts_left=9,
        failures=failures,
    )
    return evolve(view, **changes)


def delay_s(retry: Retry, view: FailedRequest) -> float | None:
    """How long the plugin waits, None when it does not retry."""
    answer = retry.answer(view)
    return answer.after_s if answer else None


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(1, 0.25, 0.5), (2, 0.5, 1.0), (5, 4.0, 8.0), (8, 15.0, 30.0), (5000, 15.0, 30.0)],
)
def test_it_waits_between_half_and_all_of_a_time_that_doubles_up_to_a_limit(
    failures: int, least: float, most: float
) -> None:
    view = failed(*[BUSY] * failures)
    assert [delay_s(Retry(random=lambda chance=chance: chance), view) for chance in (0.0, 1.0)] == [least, most]


def test_what_failed_with_another_model_does_not_make_it_wait_longer() -> None:
    others = [Failure(model="b:y", kind="server")] * 6
    assert delay_s(Retry(random=lambda: 1.0), failed(*others, BUSY)) == 0.5


@given(
    wish=st.none() | st.floats(0, 60),
    failures=st.integers(1, 40),
    chance=st.floats(0, 1, exclude_max=True),
    base=st.floats(0, 5),
    more=st.floats(0, 50),
)
def test_the_wish_of_the_provider_is_never_undercut_and_hardly_exceeded(
    wish: float | None, failures: int, chance: float, base: float, more: float
) -> None:
    retry = Retry(base_s=base, max_s=base + more, random=lambda: chance)
    waited = delay_s(retry, failed(*[BUSY] * failures, retry_after_s=wish))
    assert waited is not None
    assert (wish or 0.0) <= waited <= max(wish or 0.0, (base + more) / 2) + (base + more) / 2


def test_clients_that_were_told_the_same_time_do_not_come_back_together() -> None:
    chances = [0.0, 0.25, 0.5, 0.75]
    view = failed(retry_after_s=7.0)
    assert [delay_s(Retry(random=lambda chance=chance: chance), view) for chance in chances] == [
        7.0,
        7.0625,
        7.125,
        7.1875,
    ]


def test_by_default_two_delays_are_not_the_same() -> None:
    assert len({delay_s(Retry(), failed()) for _ in range(20)}) > 1


@pytest.mark.parametrize(("wish", "retried"), [(60.0, True), (60.1, False), (86_400.0, False)])
def test_a_provider_that_wants_too_long_a_wait_is_not_asked_again(wish: float, retried: bool) -> None:
    assert (Retry().answer(failed(retry_after_s=wish)) is not None) is retried


def test_what_is_not_worth_repeating_is_not_repeated() -> None:
    assert Retry().answer(failed(retryable=False)) is None
    assert Retry().answer(failed(retryable=False, retry_after_s=1.0)) is None


@pytest.mark.parametrize("kind", FailureKind.__args__)
def test_whether_to_repeat_is_for_the_adapter_to_say_and_not_for_the_kind(kind: FailureKind) -> None:
    assert isinstance(Retry().answer(failed(Failure(model="a:x", kind=kind))), hooks.Retry)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_s": -1},
        {"base_s": 2, "max_s": 1},
        {"max_s": inf},
        {"base_s": nan},
        {"max_wait_s": -1},
        {"max_wait_s": nan},
    ],
)
def test_times_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Retry(**wrong)


def test_it_is_discovered_with_its_defaults() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    entry = EntryPoint("retry", project["entry-points"]["flightlog"]["retry"], "flightlog")
    assert entry.load()() == Retry()
