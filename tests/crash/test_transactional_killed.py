"""Real SIGKILLs at random moments of many transactional calls: each happens exactly once, and the log knows which."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from flightlog.runtime.recovery import OnCrash
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.children import fork_server
from support.kernels import events_of, verified
from support.stock import JOURNALS, done_rows, left, new_shop

from shop_child import SALES, Seller  # isort: skip

Run = Callable[[Path, OnCrash, float, int], int]
KILLED = -signal.SIGKILL
KILLS = 15
WHOLE_S = 30.0

pytestmark = pytest.mark.kill


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Let a child sell in a folder until it is done, or killed after some time or sales; returns its exit code."""
    with fork_server(Path(__file__).with_name("shop_child.py")) as lived:
        yield lambda folder, on_crash, kill_after_s, sales: lived(
            folder=str(folder), on_crash=on_crash, kill_after_s=kill_after_s, sales=sales
        )


@pytest.mark.parametrize("on_crash", get_args(OnCrash))
@pytest.mark.parametrize("journal", JOURNALS)
def test_killed_at_random_moments_each_sale_happens_exactly_once(run: Run, journal: str, on_crash: OnCrash) -> None:
    seed = f"kills {journal} {on_crash}"
    random, told, kills, rounds = Random(seed), Counter[str](), 0, 0
    while kills < KILLS:
        rounds += 1
        assert rounds < KILLS * 4, f"seed {seed!r}: nobody is hit"
        with memory_folder() as folder:
            new_shop(folder / "shop.db", journal)
            assert run(folder, on_crash, WHOLE_S, random.randint(1, 4)) == KILLED
            for _ in range(4):  # in the recovery from that, or somewhere later
                kills += run(folder, on_crash, random.uniform(0.01, 0.2), random.choice((0, 0, 1, 3))) == KILLED
            assert run(folder, on_crash, WHOLE_S, 0) == 0, f"seed {seed!r}"
            told += checked(folder, on_crash, f"seed {seed!r}, round {rounds}")
    assert told["done_row"], "some were committed without the log knowing it"


def checked(folder: Path, on_crash: OnCrash, where: str) -> Counter[str]:
    """What the log says and what is in the shop, compared; who told what."""
    verified(folder / "a.db", Seller([]))
    started = {call.invocation_id for call in events_of(folder / "a.db", ToolCall)}
    results = [result for result in events_of(folder / "a.db", ToolResult) if result.call_seq]
    outcomes = Counter(result.outcome for result in results)
    kept = dict(done_rows(folder / "shop.db"))
    assert left(folder / "shop.db") == 100 - SALES, where
    assert outcomes["ok"] == SALES == sum(result is not None for result in kept.values()), where
    assert outcomes.keys() <= ({"ok", "aborted"} if on_crash == "close" else {"ok"}), where
    assert kept.keys() <= started, where
    return Counter(result.told_by for result in results if result.outcome == "ok")
