"""Repairing where pages are lost, whichever they are: a row is lost only with what itself stands in them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
import trio
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

import flightlog
from flightlog.store.log_file import open_log_file
from flightlog.store.raw_pages import _pages, records
from flightlog.store.replay import Replay, checking
from flightlog.store.rows import EventRow
from flightlog.store.statements import schema_sql
from flightlog.testing import FakeModel, words
from flightlog_hookspecs.errors import LogCorrupt, NotAFlightlog, StoreError
from flightlog_hookspecs.events import SessionRepaired
from support import kernels
from support.damage import PAGE_BYTES, Image, cut_or_flipped
from support.files import Pen, content, copied, in_memory, opened, photograph, plain, rich
from support.repairs import check_repair, uid_of

SESSIONS = ("s", "t", "u")
FEW = settings(max_examples=settings.default.max_examples // 2)
Pages = frozenset[int]


@define(repr=False)
class Provable:
    """A log as it was written, and which pages hold each of its rows: what is provable when some are lost."""

    keys: dict[str, tuple[int, str]]
    events: dict[int, list[tuple[EventRow, Pages]]]
    deltas: dict[tuple[int, int], list[tuple[int, str, Pages]]]
    blobs: dict[bytes, tuple[bytes, Pages]]
    rows_written: set[tuple[object, ...]]
    lost: Pages = frozenset()

    def rows(self, key: int, after: int = 0) -> Iterator[EventRow]:
        return (row for row, pages in self.events[key] if not pages & self.lost)

    def blob(self, digest: bytes) -> bytes:
        content, pages = self.blobs[digest]
        return b"" if pages & self.lost else content

    def pieces(self, key: int, seq: int) -> list[tuple[int, str]]:
        return [(at, text) for at, text, pages in self.deltas[key, seq] if not pages & self.lost]

    def kept(self, lost: AbstractSet[int]) -> dict[str, int]:
        """How many rows of each session can be proven without the pages `lost`."""
        self.lost = frozenset(lost)
        found = dict.fromkeys(self.keys, 0)
        for name, (key, uid) in self.keys.items():
            replay = Replay(session=name, uid=uid)
            with suppress(LogCorrupt):
                for row, _ in checking(self, replay, key, deltas=True):
                    if not replay.state.claimed:
                        found[name] = row.seq
        return found


def rows_and_pages(path: Path, table: str, key: str) -> list[tuple[tuple[object, ...], Pages]]:
    """The rows of `table` in the order of its tree, each with the pages that hold bytes of it."""
    connection = apsw.Connection(str(path))
    try:
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY {key}").fetchall()
        stat = list(connection.execute("SELECT path, pageno, pagetype, ncell FROM dbstat WHERE name = ?", (table,)))
    finally:
        connection.close()
    nodes = {place: (number, kind, cells) for place, number, kind, cells in stat if kind != "overflow"}

    def cells(place: str) -> Iterator[Pages]:
        number, kind, count = nodes[place]
        for cell in range(count):
            if kind == "internal":
                yield from cells(f"{place}{cell:03x}/")
            if kind == "leaf" or table == "delta_texts":  # the only one whose inner pages hold rows
                chain = f"{place}{cell:03x}+"
                yield frozenset({number, *(n for p, n, k, _ in stat if k == "overflow" and p.startswith(chain))})
        if kind == "internal":
            yield from cells(f"{place}{count:03x}/")

    return list(zip(rows, cells("/"), strict=True))


def provable(path: Path) -> Provable:
    found = Provable({}, {}, {}, {}, rows_of(path))
    for (key, name, uid), _ in rows_and_pages(path, "session_keys", "session"):
        found.keys[str(name)] = (int(str(key)), str(uid))
        found.events[int(str(key))] = []
    for (_, *columns), pages in rows_and_pages(path, "events", "id"):
        row = EventRow._make(columns)
        found.events[row.session].append((row, pages))
    for (key, seq, _, at, text), pages in rows_and_pages(path, "delta_texts", "session, seq, i"):
        place = int(str(key)), int(str(seq))
        found.deltas.setdefault(place, []).append((int(str(at)), str(text), pages))
    for (_, digest, payload), pages in rows_and_pages(path, "blobs", "id"):
        assert isinstance(digest, bytes)
        assert isinstance(payload, bytes)
        found.blobs[digest] = payload, pages
    return found


@pytest.fixture(scope="module", params=["closed", "killed"])
def log(request: pytest.FixtureRequest) -> Iterator[tuple[Image, Provable]]:
    """A small log with something in every table, closed cleanly or with its end in the -wal."""
    with in_memory() as folder:
        path = folder / "log.db"
        rich(path, large=6000)
        with opened(path) as store:
            pen = Pen(store, "u")
            for number in range(12):
                pen.say(f"number {number} " * 20)
            copy = copied(path, folder / "copy.db")
        image = Image(copy if request.param == "killed" else path, {})
        image.durable = {name: len(records) for name, records in image.whole.items()}
        yield image, provable(image.put_down({}))


def pages_in_wal(image: Image) -> Pages:
    """The pages of which the -wal has the newest version."""
    wal = image.files.get("-wal", b"")
    frames = range(32, len(wal), 24 + PAGE_BYTES)
    return frozenset(int.from_bytes(wal[at : at + 4], "big") for at in frames if wal[at + 8 : at + 16] == wal[16:24])


def check_kept(log: tuple[Image, Provable], damaged: bytes, lost: set[int], maybe: set[int] | None = None) -> None:
    """Repair the log with `damaged` for its main file, which lacks the pages `lost`, and of `maybe` some bytes."""
    image, whole = log
    least, most = (whole.kept(pages - pages_in_wal(image)) for pages in (frozenset(lost | (maybe or set())), lost))
    path = image.put_down({"": damaged})
    try:
        report = flightlog.repair(path)
    except (LogCorrupt, NotAFlightlog):
        assert not any(least.values()), "what could be kept was refused"
        check_repair(path, image.whole, image.durable)
        return
    check_repair(path, image.whole, image.durable)
    found = {uid_of(records): records for records in content(path).values()}
    said = {loss.session for loss in report.sessions}
    for name in SESSIONS:
        uid = whole.keys[name][1]
        kept = [record for record in found.get(uid, []) if not isinstance(record.event, SessionRepaired)]
        assert least[name] <= len(kept) <= most[name], name
        assert kept or not least[name] or f"lost-{uid}" in said or name in said, f"{name} vanished"
    assert rows_of(path) <= whole.rows_written, "a row is not what it was"
    with opened(path) as store:
        Pen(store, "new").say("it goes on")


def rows_of(path: Path) -> set[tuple[object, ...]]:
    """The rows that were once written, all of each."""
    with plain(path) as database:
        columns = ", ".join(f"e.{name}" for name in EventRow._fields[1:])
        return set(
            database.execute(
                f"SELECT k.uid, {columns} FROM events e JOIN session_keys k USING(session) "
                "WHERE e.kind <> 'session/repaired'"
            )
        )


def without(data: bytes, pages: dict[int, bytes]) -> bytes:
    """`data` with other bytes in these pages."""
    changed = bytearray(data)
    for page, filling in pages.items():
        changed[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = filling
    return bytes(changed)


def step(log: tuple[Image, Provable]) -> int:
    """Every page of the closed log is tried; of the other only some, for it holds the same."""
    return 3 if log[0].files.get("-wal") else 1


def test_a_page_of_zeros_anywhere_costs_only_what_stands_in_it(log: tuple[Image, Provable]) -> None:
    whole = log[0].files[""]
    for page in range(1, len(whole) // PAGE_BYTES + 1, step(log)):
        check_kept(log, without(whole, {page: bytes(PAGE_BYTES)}), {page})


@FEW
@given(seed=st.integers(0, 2**32), number=st.integers(1, 6))
def test_pages_of_garbage_anywhere_cost_only_what_stands_in_them(
    log: tuple[Image, Provable], seed: int, number: int
) -> None:
    chance, whole = random.Random(seed), log[0].files[""]
    pages = chance.sample(range(1, len(whole) // PAGE_BYTES + 1), number)
    check_kept(log, without(whole, {page: chance.randbytes(PAGE_BYTES) for page in pages}), set(pages))


def test_a_file_cut_anywhere_keeps_what_stands_before_the_cut(log: tuple[Image, Provable]) -> None:
    whole = log[0].files[""]
    last = len(whole) // PAGE_BYTES
    boundaries = range(PAGE_BYTES, len(whole), PAGE_BYTES * step(log))
    for size in [*boundaries, 50, 100, 4097, 20_000, len(whole) - 2000, len(whole) - 1]:
        cut = -(-size // PAGE_BYTES)
        check_kept(log, whole[:size], set(range(cut + 1, last + 1)), {cut} if size % PAGE_BYTES else None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with sessions "s" and "t"."""
    path = tmp_path / "log.db"
    rich(path, large=6000)
    return path


def lose(path: Path, *pages: int) -> None:
    path.write_bytes(without(path.read_bytes(), {page: bytes(PAGE_BYTES) for page in pages}))


def pages_of_schema(path: Path) -> list[int]:
    """Those behind the first."""
    connection = apsw.Connection(str(path))
    try:
        found = connection.execute("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema' AND pageno > 1").fetchall()
    finally:
        connection.close()
    return [page for (page,) in found]


def test_a_log_without_its_schema_loses_nothing_and_its_sessions_go_on(path: Path) -> None:
    before = content(path)
    lose(path, *pages_of_schema(path))
    with pytest.raises(LogCorrupt, match="`flightlog repair`"):
        open_log_file(str(path), create=False)
    report = flightlog.repair(path, dry_run=False)
    assert report.problems
    assert (report.sessions, report.letters) == ((), 0)
    assert content(path) == before

    async def go_on() -> None:
        async with (
            kernels.opened(path, FakeModel([words("Gladly.")])) as kernel,
            kernel.session("s", model="fake:m") as session,
        ):
            await session.run()

    trio.run(go_on)
    assert content(path)["s"][-2].event.kind == "turn/end"


def test_a_log_without_its_beginning_is_told_from_a_file_that_never_was_one_by_its_witness(path: Path) -> None:
    lose(path, 1)
    with pytest.raises(LogCorrupt, match="`flightlog repair`"):
        open_log_file(str(path), create=False)
    Path(f"{path}-head").unlink()
    with pytest.raises(NotAFlightlog):
        open_log_file(str(path), create=False)


def test_a_log_without_its_beginning_keeps_what_stands_in_a_wal_that_lacks_it_too(path: Path) -> None:
    with opened(path) as store:
        Pen(store, "u").say("a")
    with opened(path) as store:
        Pen(store, "u").say("b")
        copied(path, path.with_name("copy.db"))
    image = Image(path.with_name("copy.db"), {"s": 25, "t": 25, "u": 4})
    assert 1 not in pages_in_wal(image)
    damaged = image.put_down({"": without(image.files[""], {1: bytes(PAGE_BYTES)})})
    assert check_repair(damaged, image.whole, image.durable) == "repaired"
    assert content(damaged) == image.whole


def test_a_repair_that_ends_before_the_new_file_stands_there_leaves_all_that_the_old_one_held(
    killed: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = set(pages_of_schema(killed.put_down({}))) - pages_in_wal(killed)
    path = killed.put_down({"": without(killed.files[""], {page: bytes(PAGE_BYTES) for page in schema})})
    report = flightlog.repair(path)
    rename = os.rename

    def fail(old: str, new: str) -> None:
        if new == str(path):
            raise OSError("the end")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(StoreError):
        flightlog.repair(path, dry_run=False)
    monkeypatch.undo()
    assert not Path(f"{path}-wal").exists()
    assert flightlog.repair(path) == report
    check_repair(path, killed.whole, killed.durable)


def test_without_index_and_witness_nobody_can_tell_whether_rows_are_gone(path: Path) -> None:
    Path(f"{path}-head").unlink()
    lose(path, *pages_of_schema(path))
    report = flightlog.repair(path)
    assert {(loss.session, loss.kept, loss.rule) for loss in report.sessions} == {
        ("s", 25, "rows-gone"),
        ("t", 25, "rows-gone"),
    }


def test_a_database_of_somebody_else_without_its_beginning_stays_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with plain(path) as database:
        database.execute("CREATE TABLE session_keys(id INTEGER PRIMARY KEY, name TEXT, uid TEXT)")
        database.execute("INSERT INTO session_keys VALUES(1, 'not', 'ours')")
    lose(path, 1)
    before = photograph(tmp_path)
    with pytest.raises(NotAFlightlog):
        flightlog.repair(path, dry_run=False)
    assert photograph(tmp_path) == before


def test_a_single_byte_is_refused_and_the_wal_beside_it_stays(path: Path) -> None:
    """SQLite takes it for an empty file and deletes the -wal."""
    with opened(path) as store:
        Pen(store, "u").say("a")
        copied(path, path.with_name("copy.db"))
    os.truncate(path.with_name("copy.db"), 1)
    before = photograph(path.parent)
    for attempt in (flightlog.repair, lambda path: open_log_file(str(path), create=False)):
        with pytest.raises(NotAFlightlog):
            attempt(path.with_name("copy.db"))
    assert photograph(path.parent) == before


@FEW
@given(data=st.data())
def test_the_pages_of_a_wal_are_those_that_sqlite_takes_from_it(killed: Image, data: st.DataObject) -> None:
    changed = cut_or_flipped(data, killed.files["-wal"])
    path = killed.put_down({"-wal": changed})
    with _pages(str(path)) as pages:
        found = [pages.page(number) for number in range(1, pages.count + 1)]
    connection = apsw.Connection(str(path))
    try:
        assert b"".join(found) == connection.serialize("main")
    finally:
        connection.close()


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_rows_of_any_size_are_found_in_pages_of_any_size(tmp_path: Path, page_bytes: int) -> None:
    path, chance = tmp_path / "log.db", random.Random(page_bytes)
    sizes = [*range(0, 3 * page_bytes, page_bytes // 20), 10 * page_bytes]
    rows = [
        (chance.getrandbits(62) >> chance.randrange(62), number, 0, -number, "è" * (size // 2))
        for number, size in enumerate(sizes)
    ]
    with plain(path) as database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("PRAGMA synchronous = OFF")
        database.executescript(schema_sql())
        database.executemany("INSERT INTO delta_texts VALUES(?,?,?,?,?)", rows)
        database.executemany(
            "INSERT INTO blobs VALUES(?,?,?)",
            [(number, number.to_bytes(32), text.encode()) for number, (*_, text) in enumerate(rows, 1)],
        )
        expected = [
            database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("delta_texts", "blobs")
        ]
    found = list(records(str(path)))
    assert sorted(tuple(r.values) for r in found if r.id is None and len(r.values) == 5) == expected[0]
    blobs = [(r.id, *r.values[1:]) for r in found if r.id and len(r.values) == 3]
    assert sorted(row for row in blobs if isinstance(row[1], bytes)) == expected[1]
