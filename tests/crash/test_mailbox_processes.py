"""Letters between real processes: two write to a session that a third drives, and owners die in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import flightlog
from flightlog import Mailbox
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs.events import (
    ApprovalDecided,
    AssistantDelta,
    Event,
    InboxSplice,
    LetterTaken,
    Record,
    UserMessage,
)
from support.children import TESTS, closing_process, fork_server, until
from support.conversation import assert_at_rest
from support.files import Child, in_memory
from support.kernels import events_of, opened

from mail_child import PAYS_EACH, Cashier, open_questions, owning, query, send, take_and_run  # isort: skip

KILLED = -signal.SIGKILL
Run = Callable[[Path, int], int]

pytestmark = pytest.mark.kill


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("mail_child.py")), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
    )


def assert_taken_once(records: list[Record], letter_ids: set[str]) -> None:
    """Each letter has become events exactly once, and each message has entered at most once."""
    taken = Counter(record.event.letter_id for record in records if isinstance(record.event, LetterTaken))
    assert taken == dict.fromkeys(letter_ids, 1)
    entered = Counter(record.event.message_id for record in records if isinstance(record.event, UserMessage))
    accepted = Counter(
        record.event.message_id
        for record in records
        if isinstance(record.event, InboxSplice) and record.event.cause == "accepted"
    )
    assert {*accepted.values(), *entered.values()} <= {1}
    assert entered.keys() <= accepted.keys()


@pytest.mark.parametrize("wild", [False, True], ids=["in peace", "with cancels, and the owner dies"])
async def test_letters_of_all_kinds_from_two_processes_take_effect_exactly_once(tmp_path: Path, wild: bool) -> None:
    path, posted = tmp_path / "a.db", dict[str, str]()
    async with opened(path, Cashier([])) as kernel:
        owner = started("own", str(tmp_path))
        with closing_process(owner), trio.fail_after(120):
            assert owner.stdout is not None
            await trio.to_thread.run_sync(owner.stdout.readline)
            with writers(tmp_path, cancels=wild) as (ada, bob):
                if wild:
                    await until(lambda: len(events_of(path, LetterTaken)) > 5)
                    owner.kill()
                    owner.wait()
                for writer in (ada, bob):
                    told, _ = await trio.to_thread.run_sync(writer.communicate)
                    assert writer.returncode == 0
                    posted |= json.loads(told)
            if not wild:
                await settle(path, kernel.mailbox("s"), posted)
        if wild:
            with closing_process(started("own", str(tmp_path))), trio.fail_after(120):
                await settle(path, kernel.mailbox("s"), posted)
        async with kernel.session("s", model="fake:m"):
            pass
    records = assert_at_rest(path, Cashier([]))
    assert_taken_once(records, set(posted.values()))
    by_grace = Counter(
        record.event.asked_seq
        for record in records
        if isinstance(record.event, ApprovalDecided) and record.event.by == "grace"
    )
    asked = {int(key.split()[1]) for key in posted if key.startswith("approve") and key != "approve 1"}
    assert by_grace == dict.fromkeys(asked, 1)
    paid = Counter((tmp_path / "paid").read_text().splitlines())
    assert set(paid.values()) == {1}
    assert wild or len(paid) == 4 * PAYS_EACH
    verbs = {record.event.verb for record in records if isinstance(record.event, LetterTaken)}
    assert verbs == {"followup", "steer", "inject", "approve", *(["cancel"] if wild else [])}


def outcomes(events: Iterable[Event]) -> list[tuple[str, str]]:
    """(verb, outcome) of each letter taken, in order."""
    return [(event.verb, event.outcome) for event in events if isinstance(event, LetterTaken)]


@contextmanager
def writers(folder: Path, *, cancels: bool) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that write to the session."""
    processes = [started("write", str(folder), name, "yes" if cancels else "no") for name in ("ada", "bob")]
    with closing_process(processes[0]), closing_process(processes[1]):
        yield processes


BUSY = """
SELECT (SELECT count(*) FROM events WHERE kind = 'letter/taken') < (SELECT count(*) FROM letters)
    OR (SELECT last_reason FROM sessions) = 'open'
    OR (SELECT count(*) FROM inbox WHERE slot = 'next_turn') > 0
"""


async def settle(path: Path, mailbox: Mailbox, posted: dict[str, str]) -> None:
    """Answer whatever the session asks, in letters, until it has taken all of them and rests."""
    while query(path, BUSY) == [(1,)]:
        for seq in open_questions(path):
            posted[f"approve {seq}"] = (await send(mailbox, f"approve {seq}")).letter_id
        await trio.lowlevel.checkpoint()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory if there is one: a SIGKILL does not lose what the file system has."""
    with memory_folder() as made:
        yield made


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Let an owner take what waits and run until it is idle or dies at a boundary; returns its exit code."""
    with fork_server(Path(__file__).with_name("mail_child.py"), "forks") as lived:
        yield lambda folder, die_at: lived(folder=str(folder), die_at=die_at)


async def test_an_owner_killed_at_every_boundary_between_letter_and_event_loses_and_doubles_nothing(
    folder: Path, run: Run
) -> None:
    keys = ["inject a", "followup b", "approve 7", "steer c", "cancel", "followup d"]
    (folder / "letters").mkdir()
    async with opened(folder / "letters" / "a.db", Cashier([])) as kernel:
        posted = [(await send(kernel.mailbox("s"), key)).letter_id for key in keys]
    whole = folder / "whole"
    shutil.copytree(folder / "letters", whole)
    assert run(whole, -1) == 0
    expected = [
        ("inject", "obeyed"),
        ("followup", "obeyed"),
        ("approve", "refused"),
        ("steer", "obeyed"),
        ("cancel", "refused"),
        ("followup", "obeyed"),
    ]
    assert outcomes(events_of(whole / "a.db", LetterTaken)) == expected, "in the order of the letters"
    boundaries = int((whole / "boundaries").read_text())
    assert boundaries > 2 * len(keys)
    taking = 2 * len(keys) + 4  # opening and taking; of the turns behind them only some
    for die_at in (*range(taking), *range(taking, boundaries, 9)):
        here = folder / f"killed{die_at}"
        shutil.copytree(folder / "letters", here)
        assert run(here, die_at) == KILLED
        assert run(here, -1) == 0
        records = assert_at_rest(here / "a.db", Cashier([]))
        assert_taken_once(records, set(posted))
        assert outcomes(record.event for record in records) == expected, "none was half taken before"
        texts = {record.event.text for record in records if isinstance(record.event, UserMessage)}
        assert texts == {"inject a", "pay followup b", "pay steer c", "pay followup d"}
        paid = Counter((here / "paid").read_text().splitlines()) if (here / "paid").exists() else Counter()
        assert set(paid.values()) <= {1}
        shutil.rmtree(here)


# ---------------------------------------------------------------- any mixture, and anybody may die

WISHES = st.lists(st.sampled_from(["followup", "steer", "inject", "cancel", "approve"]), min_size=1, max_size=5)
DEATH = st.none() | st.integers(0, 4)


def post(channel: Connection[Any, Any], folder: Path, name: str, wishes: list[str]) -> None:
    """Send a letter per wish, and tell each once it is posted; `approve` answers all that is asked just then."""

    async def posting() -> None:
        async with flightlog.open_kernel(folder / "a.db", discover=False) as kernel:
            for number, wish in enumerate(wishes):
                asked = [f"approve {seq}" for seq in open_questions(folder / "a.db")]
                for key in asked if wish == "approve" else [f"{wish} {name} {number}"]:
                    channel.send((await send(kernel.mailbox("s"), key)).letter_id)

    trio.run(posting)


def drive(channel: Connection[Any, Any], folder: Path, die_at: int | None) -> None:
    """Own the session and serve it; die by SIGKILL at that boundary."""
    passed = count()

    def boundary(name: str, session: str, seq: int) -> None:
        if next(passed) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def serving() -> None:
        async with owning(folder, boundary) as session:
            channel.send("ready")
            await session.serve()

    trio.run(serving)


def finish(channel: Connection[Any, Any], folder: Path) -> None:
    """Own the session, take what waits and run until idle."""
    trio.run(take_and_run, folder, -1)
    channel.send("idle")


def posted_by(folder: Path, name: str, wishes: list[str], dies_after: int | None) -> set[str]:
    """The letters of one sender. If it dies in between, the next one sends all of them again."""
    told: set[str] = set()
    if dies_after is not None:
        with Child(post, folder, name, wishes) as sender:
            with suppress(EOFError, ConnectionResetError):
                told |= {sender.receive() for _ in range(dies_after)}
            sender.kill()
            told |= set(sender.rest())
    with Child(post, folder, name, wishes) as sender:
        told |= set(sender.rest())
        sender.wait()
    return told


@given(ada=WISHES, bob=WISHES, ada_dies=DEATH, bob_dies=DEATH, owner_dies=st.none() | st.integers(3, 60))
@settings(max_examples=settings.default.max_examples // 6)
def test_any_mixture_of_letters_from_two_processes_takes_effect_once_whoever_dies_in_between(
    ada: list[str], bob: list[str], ada_dies: int | None, bob_dies: int | None, owner_dies: int | None
) -> None:
    seqs: list[int] = []

    async def follow(kernel: flightlog.Kernel) -> None:
        async for record in kernel.read("s").events(deltas=False):
            seqs.append(record.seq)  # noqa: PERF401  each as it comes

    async def correspond(folder: Path) -> None:
        path, posted = folder / "a.db", dict[str, str]()

        async def sender(name: str, wishes: list[str], dies: int | None) -> None:
            for letter_id in await trio.to_thread.run_sync(posted_by, folder, name, wishes, dies):
                posted[letter_id] = letter_id

        async with opened(path, Cashier([])) as kernel:
            async with kernel.session("s", model="fake:m"):
                pass
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, kernel)
                with Child(drive, folder, owner_dies):
                    async with trio.open_nursery() as senders:
                        senders.start_soon(sender, "ada", ada, ada_dies)
                        senders.start_soon(sender, "bob", bob, bob_dies)
                    if owner_dies is None:
                        await settle(path, kernel.mailbox("s"), posted)
                with Child(finish, folder) as heir:
                    await trio.to_thread.run_sync(heir.receive)
                    heir.wait()
                last = kernel.read("s").verify()
                await until(lambda: seqs[-1] == last)
                nursery.cancel_scope.cancel()
        async with opened(path, Cashier([])) as kernel, kernel.session("s", model="fake:m"):
            pass
        records = assert_at_rest(path, Cashier([]))
        letters = {letter_id for (letter_id,) in query(path, "SELECT uid FROM letters")}
        assert set(posted.values()) <= letters
        assert_taken_once(records, letters)
        paid = Counter((folder / "paid").read_text().splitlines()) if (folder / "paid").exists() else Counter()
        assert set(paid.values()) <= {1}
        assert seqs == [r.seq for r in records if r.seq <= last and not isinstance(r.event, AssistantDelta)]

    with in_memory() as folder:
        trio.run(correspond, folder)
