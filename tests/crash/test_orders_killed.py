"""The program of the documentation, killed over and over: each mail at most once, each stock change exactly once."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import flightlog
from flightlog_hookspecs.events import AssistantMessage, SessionOpened, ToolCall, ToolResult, UserMessage
from support.children import fork_server

from orders_child import orders  # isort: skip

KILLED = -signal.SIGKILL
THOROUGH = settings.default is not None and settings.default.max_examples > 30

pytestmark = pytest.mark.kill


@pytest.fixture
def life() -> Iterator[Callable[..., int]]:
    """One worker, forked from a warm process: its exit code."""
    with fork_server(Path(__file__).with_name("orders_child.py")) as lived:
        yield lambda folder, **how: lived(folder=str(folder), **how)


def shop_of(folder: Path, count: int) -> orders.Shop:
    shop = orders.Shop(folder / "shop.db")
    shop.create(count)
    return shop


def events_of(folder: Path) -> list[object]:
    """All that happened in the task, each row checked."""
    with flightlog.open_log(folder / "agent.db", plugins=[orders.plugin(orders.Shop(folder / "shop.db"))]) as log:
        (name,) = log.names()
        reader = log.session(name)
        reader.verify()
        (state,) = log.query("SELECT state FROM tasks").rows
        assert state == ("completed",)
        return [record.event for record in reader.records()]


def report_in(events: list[object]) -> dict[str, list[int]]:
    last = next(event for event in reversed(events) if isinstance(event, AssistantMessage))
    found: dict[str, list[int]] = json.loads(last.text)
    return found


def test_killed_at_random_moments_each_mail_goes_out_at_most_once_and_the_stock_is_right(
    tmp_path: Path, life: Callable[..., int]
) -> None:
    count, kills = (200, 100) if THOROUGH else (40, 12)
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    moments = random.Random(seed)
    shop = shop_of(tmp_path, count)
    before = shop.pieces()
    killed = 0
    while killed < kills and life(tmp_path, seconds=moments.uniform(0.02, 0.35 if THOROUGH else 0.25)) == KILLED:
        killed += 1
    assert life(tmp_path) == 0
    events = events_of(tmp_path)
    mails = Counter(order for order, _ in shop.mailed())
    assert set(mails.values()) <= {1}, "no mail twice"
    report = report_in(events)
    assert sorted([*report["sent"], *report["unknown"]]) == shop.numbers(), "nothing is left out, nothing said twice"
    assert set(report["sent"]) <= mails.keys() <= {*report["sent"], *report["unknown"]}
    unknown = [e for e in events if isinstance(e, ToolResult) and e.name == "send_mail" and e.outcome == "unknown"]
    assert len(unknown) == len(report["unknown"])
    assert Counter(order for order, _ in shop.moved()) == Counter(shop.numbers()), "each stock change exactly once"
    assert shop.pieces() == before - sum(quantity for _, quantity in shop.moved())
    assert sum(isinstance(event, SessionOpened) for event in events) > killed // 2, "the kills fell into the work"


def test_after_hours_dead_the_model_sees_the_new_state_and_a_precheck_stops_what_is_stale(
    tmp_path: Path, life: Callable[..., int]
) -> None:
    shop = shop_of(tmp_path, 10)
    assert life(tmp_path, die_at=["request", 3]) == KILLED, "the first orders are read, no mail has gone out"
    with shop.open() as db:  # three hours later
        db.execute("UPDATE orders SET cents = cents + 500 WHERE id = 1")
        db.execute("UPDATE orders SET status = 'cancelled' WHERE id = 2")
        db.execute("UPDATE orders SET status = 'refunded' WHERE id = 3")
    assert life(tmp_path) == 0
    events = events_of(tmp_path)
    news = "".join(e.text for e in events if isinstance(e, UserMessage) and e.source == "resync")
    assert '"cancelled"' in news, "the model was told before it acted"
    assert not [e for e in events if isinstance(e, ToolResult) and e.outcome == "denied"], "never stopped"
    mails = dict(shop.mailed())
    assert mails[1] == shop.order(1).cents, "the new price"
    assert sorted(mails) == [1, 4, 5, 6, 7, 8, 9, 10]
    assert report_in(events)["not_shipped"] == [2, 3]
    stale = [json.loads(e.arguments)["order"] for e in events if isinstance(e, ToolCall) and e.name == "send_mail"]
    assert not {2, 3} & set(stale), "no mail about them was even begun"


def test_a_mail_that_was_called_for_before_the_world_changed_is_stopped(
    tmp_path: Path, life: Callable[..., int]
) -> None:
    shop = shop_of(tmp_path, 5)
    assert life(tmp_path, die_at=["tool", 8]) == KILLED, "five reads and a mail were over, the second mail had begun"
    with shop.open() as db:
        db.execute("UPDATE orders SET status = 'cancelled' WHERE id = 4")
        db.execute("UPDATE orders SET cents = cents + 500 WHERE id = 5")
    assert life(tmp_path) == 0
    events = events_of(tmp_path)
    denied = [e for e in events if isinstance(e, ToolResult) and e.outcome == "denied"]
    assert [e.text for e in denied if "order 4 is cancelled" in e.text], "the precheck says why"
    mails = dict(shop.mailed())
    assert 4 not in mails
    assert mails[5] == shop.order(5).cents
