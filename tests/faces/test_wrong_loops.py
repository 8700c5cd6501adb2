"""A face under another loop than its own says which one to use, and makes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

import flightlog
from flightlog.errors import UsageError

Main = Callable[[], Coroutine[Any, Any, None]]


def without_a_loop(main: Main) -> None:
    with pytest.raises(StopIteration):
        main().send(None)


LOOPS: dict[str, Callable[[Main], object]] = {
    "trio": trio.run,
    "asyncio": lambda main: asyncio.run(main()),
    "no event loop": without_a_loop,
}
FACES: dict[str, Any] = {"trio": flightlog.open_kernel, "asyncio": flightlog.aio.open_kernel}
USE = {"trio": "flightlog.open_kernel", "asyncio": "flightlog.aio.open_kernel"}


@pytest.mark.parametrize(("face", "loop"), [(face, loop) for face in FACES for loop in LOOPS if face != loop])
def test_a_face_under_another_loop_names_the_right_one_and_makes_no_log(tmp_path: Path, face: str, loop: str) -> None:
    async def main() -> None:
        use = USE.get(loop, "flightlog.sync.open_kernel")
        with pytest.raises(UsageError, match=f"{USE[face]} runs under {face}, and this code under {loop}: use {use}$"):
            async with FACES[face](tmp_path / "a.db", discover=False):
                pass

    LOOPS[loop](main)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_blocking_face_works_under_any_loop_and_under_none(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        with flightlog.sync.open_kernel(tmp_path / "a.db", discover=False) as kernel:
            assert kernel.query("SELECT 1").rows == ((1,),)

    LOOPS[loop](main)
