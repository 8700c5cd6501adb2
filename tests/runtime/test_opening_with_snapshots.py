"""Opening a session that has a snapshot: little is read, everything else is as without one."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import event, given
from hypothesis import strategies as st

import flightlog
from flightlog import aio, sync
from flightlog.core import snapshot
from flightlog.runtime.clock import no_boundary
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.recovery import OnCrash, Verify, open_session
from flightlog.store import replay
from flightlog.store.backup import back_up
from flightlog.store.store import Store
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.faults.determinism import clock_of
from flightlog_hookspecs import Tool
from flightlog_hookspecs.content import FileBlock, TextBlock
from flightlog_hookspecs.errors import Fenced, LogCorrupt, UsageError
from flightlog_hookspecs.events import SessionCreated, SubagentSettled, UserMessage
from support.damage import hide_damage, unguarded
from support.family import Family, child_of
from support.files import in_memory, keep_snapshot, opened, plain
from support.kernels import events_of, records_of, session_of
from support.legal_logs import LegalLog, legal_logs, write

TURNS = 12
PICTURE = b"\x89PNG of a remark"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are due after a handful of rows."""
    monkeypatch.setattr(snapshot, "is_due", lambda rows, _: rows >= 20)


@pytest.fixture
def log(tmp_path: Path, often: None) -> Path:
    """A log of some turns, with a snapshot of nearly all of it."""

    async def said() -> None:
        async with session_of(tmp_path / "log.db", FakeModel([words("So it is.")] * TURNS)) as session:
            for number in range(TURNS):
                await session.followup(
                    (FileBlock.of(PICTURE, media_type="image/png"), TextBlock(text=f"remark {number}"))
                )
                await session.run()

    trio.run(said)
    return tmp_path / "log.db"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that are read and checked, by their seqs."""
    seen: list[int] = []
    check = replay.intact_record

    def watched(source: Any, position: Any, row: Any, *, deltas: bool) -> Any:
        seen.append(row.seq)
        return check(source, position, row, deltas=deltas)

    monkeypatch.setattr(replay, "intact_record", watched)
    monkeypatch.setattr("flightlog.store.snapshots.intact_record", watched)
    return seen


def snapshot_seq(path: Path) -> int:
    with plain(path) as database:
        found = database.execute("SELECT seq FROM snapshots").fetchall()
    return int(found[0][0]) if found else 0


def opens(path: Path, **options: Any) -> None:
    """Open the session, and leave it."""

    async def opening() -> None:
        async with (
            flightlog.open_kernel(path, discover=False, plugins=[Bundle(adapters=[FakeModel([])])]) as kernel,
            kernel.session("s", model="fake:m", **options),
        ):
            pass

    trio.run(opening)


def change(path: Path, seq: int) -> None:
    """Change a row behind the kernel's back."""
    with plain(path) as database:
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE seq = ?", (seq,))


def test_only_what_the_model_is_shown_and_what_is_new_is_read(log: Path, reads: list[int]) -> None:
    kept, rows = snapshot_seq(log), len(records_of(log))
    assert rows - 20 <= kept < rows
    shown = {r.seq for r in records_of(log) if type(r.event).__name__ in ("UserMessage", "AssistantMessage")}
    reads.clear()
    opens(log)
    assert reads == [*sorted(seq for seq in shown if seq <= kept), *range(kept + 1, rows + 1)]
    assert len(reads) < rows / 2


def test_with_verify_full_all_rows_are_read(log: Path, reads: list[int]) -> None:
    rows = len(records_of(log))
    reads.clear()
    opens(log, verify="full")
    assert reads == list(range(1, rows + 1))


@pytest.mark.parametrize("face", [sync, aio])
def test_each_face_can_have_all_rows_read(log: Path, reads: list[int], face: Any) -> None:
    rows = len(records_of(log))
    reads.clear()
    plugins = [Bundle(adapters=[FakeModel([])])]
    if face is sync:
        with sync.open_kernel(log, discover=False, plugins=plugins) as kernel, kernel.session("s", verify="full"):
            pass
    else:

        async def opening() -> None:
            async with (
                aio.open_kernel(log, discover=False, plugins=plugins) as kernel,
                kernel.session("s", verify="full"),
            ):
                pass

        asyncio.run(opening())
    assert reads == list(range(1, rows + 1))


@pytest.mark.parametrize("wish", ["some", "", True])
def test_there_is_no_other_way_to_verify(log: Path, wish: Any) -> None:
    with pytest.raises(UsageError, match="verify must be one of"):
        opens(log, verify=wish)
    with pytest.raises(UsageError, match="verify must be one of"), sync.open_kernel(log, discover=False, verify=wish):
        pass


@pytest.mark.parametrize("face", [sync, aio])
@pytest.mark.parametrize(
    ("of_kernel", "of_session", "all_of_them"),
    [("full", None, True), ("full", "shown", False), ("shown", "full", True), ("shown", None, False)],
)
def test_a_kernel_says_it_for_its_sessions_unless_they_say_it_themselves(
    log: Path, reads: list[int], face: Any, of_kernel: str, of_session: Any, all_of_them: bool
) -> None:
    rows = len(records_of(log))
    reads.clear()
    options = {"discover": False, "plugins": [Bundle(adapters=[FakeModel([])])], "verify": of_kernel}
    if face is sync:
        with face.open_kernel(log, **options) as kernel, kernel.session("s", verify=of_session):
            pass
    else:

        async def opening() -> None:
            async with face.open_kernel(log, **options) as kernel, kernel.session("s", verify=of_session):
                pass

        asyncio.run(opening())
    assert (reads == list(range(1, rows + 1))) is all_of_them


class Looking:
    """A tool that gives an answer nine times, and then none."""

    def __init__(self) -> None:
        self.times = 0
        self.stuck = trio.Event()

    @property
    def tool(self) -> Tool:
        """It."""

        async def look() -> str:
            """Look."""
            self.times += 1
            if self.times == 10:
                self.stuck.set()
                await trio.sleep_forever()
            return f"sky {self.times}"

        return Tool(body=look, effect="read")

    replies: ClassVar[list[Any]] = [calls(("look", {})) for _ in range(10)] + [words("Blue.")]


@pytest.mark.parametrize(("verify", "state"), [("shown", "completed"), ("full", "pending")])
async def test_what_the_kernel_says_holds_for_tasks(tmp_path: Path, often: None, verify: Any, state: str) -> None:
    looking, told = Looking(), list[tuple[str, str]]()
    plugins = [Bundle(adapters=[FakeModel(looking.replies)], tools=[looking.tool])]
    path = tmp_path / "log.db"
    async with flightlog.open_kernel(path, discover=False, plugins=plugins) as kernel, trio.open_nursery() as nursery:
        await kernel.tasks.submit("look", model="fake:m", id="t")
        nursery.start_soon(kernel.work)
        await looking.stuck.wait()
        nursery.cancel_scope.cancel()
    hide_damage(path, "t")
    async with flightlog.open_kernel(path, discover=False, plugins=plugins, verify=verify) as kernel:
        await kernel.work(until_idle=True, on_problem=lambda task, error: told.append((task, type(error).__name__)))
        assert (await kernel.tasks.show("t")).state == state
    assert told == ([("t", "LogCorrupt")] if verify == "full" else [])


@pytest.mark.parametrize(("verify", "reason"), [("shown", "completed"), ("full", "error")])
async def test_what_the_kernel_says_holds_for_children(tmp_path: Path, often: None, verify: Any, reason: str) -> None:
    looking = Looking()
    start = [calls(("scout", {"task": "look"})), words("Started."), words("I see.")]
    family = Family(tmp_path, start, looking.replies, tools=[looking.tool], background=True)
    async with family.session() as session:
        await session.followup("go")
        await session.run()
        await looking.stuck.wait()
    hide_damage(family.path, child_of(family.path))
    family.verify = verify
    async with family.session() as session:
        await session.run(children=True)
    (settled,) = events_of(family.path, SubagentSettled)
    assert settled.reason == reason


def test_a_message_before_the_snapshot_that_was_tampered_with_is_refused(log: Path) -> None:
    seq = next(r.seq for r in records_of(log) if isinstance(r.event, UserMessage))
    assert seq < snapshot_seq(log)
    change(log, seq)
    with pytest.raises(LogCorrupt) as refused:
        opens(log)
    assert (refused.value.seq, refused.value.rule) == (seq, "hash-chain")


def test_so_is_one_whose_file_is_gone(log: Path) -> None:
    with plain(log) as database:
        unguarded(database).execute("DELETE FROM blobs")
    with pytest.raises(LogCorrupt, match="blob-hash"):
        opens(log)


def test_a_hidden_row_before_it_that_was_tampered_with_is_found_by_all_who_read_everything(log: Path) -> None:
    seq = next(r.seq for r in records_of(log) if r.event.kind == "step/end")
    assert seq < snapshot_seq(log)
    change(log, seq)
    opens(log)
    with flightlog.open_log(log, discover=False) as reader:
        session = reader.session("s")
        for read_all in (
            lambda: opens(log, verify="full"),
            lambda: list(session.records()),
            session.verify,
            lambda: session.export(io.BytesIO()),
        ):
            with pytest.raises(LogCorrupt) as refused:
                read_all()
            assert (refused.value.seq, refused.value.rule) == (seq, "hash-chain")


def test_without_one_all_rows_are_read_and_there_is_one_again(log: Path, reads: list[int]) -> None:
    with plain(log) as database:
        database.execute("DELETE FROM snapshots")
    rows = len(records_of(log))
    reads.clear()
    opens(log)
    assert reads == list(range(1, rows + 1))
    assert snapshot_seq(log) >= rows, "taken with the row that opens the session"


@pytest.mark.parametrize("lacking", [("snapshots", "snapshot_items"), ("snapshots",), ("snapshot_items",)])
def test_a_file_that_lacks_the_tables_gets_them_when_it_is_opened_to_write(log: Path, lacking: tuple[str, ...]) -> None:
    with plain(log) as database:
        for table in lacking:
            database.execute(f"DROP TABLE {table}")
    rows = records_of(log)
    with flightlog.open_log(log, discover=False) as reader:
        assert reader.session("s").verify() == len(rows)
    opens(log)
    assert snapshot_seq(log)
    assert records_of(log)[: len(rows)] == rows


def test_it_stays_with_the_file_and_goes_with_its_session(log: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.db", tmp_path / "other.db"
    back_up(str(log), str(copy))
    assert snapshot_seq(copy) == snapshot_seq(log)
    with flightlog.open_log(log, discover=False) as reader:
        reader.session("s").export(exported := io.BytesIO())
    assert b"snapshot" not in exported.getvalue()
    exported.seek(0)
    with sync.open_kernel(other, discover=False) as kernel:
        kernel.import_session(exported)
    assert not snapshot_seq(other)
    flightlog.purge(log, "s")
    with plain(log) as database:
        assert database.execute("SELECT * FROM snapshots").fetchall() == []


def test_a_session_that_is_taken_over_takes_no_snapshot_any_more(log: Path) -> None:
    """What a fenced owner would have kept is taken back with the append."""

    async def taking_over() -> None:
        async with session_of(log, FakeModel([words("Mine.")] * 9)) as stuck:
            async with session_of(log, FakeModel([words("Mine.")] * 9), take_over=True) as session:
                for _ in range(5):
                    await session.followup("go on")
                    await session.run()
            kept = snapshot_seq(log)
            with pytest.raises(Fenced):
                await stuck.followup("too late")
            assert snapshot_seq(log) == kept

    trio.run(taking_over)
    opens(log)


# ---------------------------------------------------------------- whoever was killed, whenever


def came_to(path: str, on_crash: OnCrash, verify: Verify) -> tuple[Any, ...]:
    """What a session is once it was opened and what a death had left open was closed."""

    async def opening() -> tuple[Any, ...]:
        store = Store.open(path)
        try:
            journal = await open_session(
                GroupCommit(store),
                "s",
                created=SessionCreated,
                plugins=(),
                expect=None,
                clock=clock_of(1),
                on_boundary=no_boundary,
                on_crash=on_crash,
                verify=verify,
            )
            return journal.state, journal.history, journal.token, journal.opened_behind
        finally:
            store.close()

    return trio.run(opening)


@given(log=legal_logs(), data=st.data(), on_crash=st.sampled_from(["close", "continue"]))
def test_a_session_whose_owner_was_killed_resumes_the_same_with_and_without(
    log: LegalLog, data: st.DataObject, on_crash: OnCrash
) -> None:
    log = log.until(data.draw(st.sampled_from(log.cuts)))
    kept = data.draw(st.sampled_from(log.cuts))
    with in_memory() as folder:
        path = str(folder / "with.db")
        write(path, log.appends())
        Path(folder / "without.db").write_bytes(Path(path).read_bytes())
        with opened(Path(path)) as store:
            keep_snapshot(store, "s", kept)
        plainly = came_to(str(folder / "without.db"), on_crash, "shown")
        assert came_to(path, on_crash, "shown") == plainly
        assert records_of(folder / "without.db") == records_of(Path(path))
    event(f"rows behind it: {(len(log.records) - kept) // 10 * 10} or more")
