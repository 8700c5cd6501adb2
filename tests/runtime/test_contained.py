"""Whatever a plugin's code raises or returns, and wherever: one failed call of that plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from flightlog_hookspecs.errors import ProviderError, ToolError
from support.places import BESIDE, PLACES, Act, reached


class Unshown(Exception):
    """An error that has neither words nor a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Leaving(ToolError):
    """An error whose words end the program."""

    def __repr__(self) -> str:
        raise SystemExit(4)

    __str__ = __repr__


class Unread(ProviderError):
    """An error whose fields cannot be read."""

    def __init__(self) -> None:
        Exception.__init__(self)

    @property
    def kind(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError

    message = retryable = retry_after_s = kind  # type: ignore[assignment]


def deep() -> ExceptionGroup[Exception]:
    """A group within a group, deeper than Python can show."""
    error: Exception = Unshown()
    for _ in range(3000):
        error = ExceptionGroup("deep", [error])
    assert isinstance(error, ExceptionGroup)
    return error


ERRORS = {
    "unshown": Unshown,
    "leaving": Leaving,
    "unread": Unread,
    "deep": deep,
    "exit": lambda: SystemExit(3),
    "several": lambda: BaseExceptionGroup("two", [Unshown(), GeneratorExit()]),
}


def raising(make: Callable[[], BaseException]) -> Act:
    def act() -> object:
        raise make()

    return act


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", PLACES)
async def test_an_error_that_cannot_be_shown_is_one_failed_call(tmp_path: Path, place: str, kind: str) -> None:
    outcome = await reached(tmp_path / "a.db", place, raising(ERRORS[kind]))
    if place.startswith("tool"):
        assert outcome == "error"


@pytest.mark.parametrize("error", [KeyboardInterrupt, lambda: BaseExceptionGroup("g", [KeyboardInterrupt()])])
@pytest.mark.parametrize("place", [place for place in PLACES if place.endswith(" sync")])
async def test_a_thread_that_raises_what_a_ctrl_c_does_is_one_failed_call(
    tmp_path: Path, place: str, error: Callable[[], BaseException]
) -> None:
    await reached(tmp_path / "a.db", place, raising(error))


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith(" sync")])
async def test_a_cancel_that_nobody_asked_for_is_one_failed_call(tmp_path: Path, place: str) -> None:
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            kept.append(cancelled)
            raise
    await reached(tmp_path / "a.db", place, raising(lambda: kept[0]))


async def answers_its_cancel() -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled as cancelled:
        raise BaseExceptionGroup("two", [cancelled, Unshown()]) from None


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith(" sync")])
async def test_an_error_in_answer_to_a_time_out_is_one_failed_call(
    tmp_path: Path, place: str, autojump_clock: trio.testing.MockClock
) -> None:
    outcome = await reached(tmp_path / "a.db", place, answers_its_cancel)
    if place.startswith("tool"):
        assert outcome == "unknown"


class Faceless:
    """A value that cannot be looked at."""

    def __repr__(self) -> str:
        raise SystemExit(4)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class Nameless:
    """A value without a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("answer", [Nameless, Faceless])
@pytest.mark.parametrize("place", [place for place in PLACES if place.partition(",")[0] in BESIDE])
async def test_an_answer_that_cannot_be_looked_at_is_one_failed_call(
    tmp_path: Path, place: str, answer: type[object]
) -> None:
    await reached(tmp_path / "a.db", place, answer)
