"""A copy of the file in use: consistent, private, closed, whole; or not there at all."""

from __future__ import annotations

import os
import stat
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import flightlog
from flightlog.errors import LogCorrupt, UsageError
from flightlog.store.backup import back_up
from flightlog.store.connection import ApswDatabase
from flightlog.store.new_file import new_file
from flightlog.store.witness import read_witness
from flightlog.testing import FakeModel, words
from support import files, kernels


def keep_writing(channel: Connection[Any, Any], path: Path) -> None:
    """Session after session of twenty messages, until killed."""
    with files.opened(path) as store:
        for number in count():
            pen = files.Pen(store, str(number))
            for said in range(20):
                pen.say(str(said), barrier=said % 7 == 0)
            if number == 0:
                channel.send("writing")


def keep_backing_up(channel: Connection[Any, Any], path: Path, target: Path) -> None:
    channel.send("going")
    back_up(str(path), str(target))


def write_half(channel: Connection[Any, Any], target: Path) -> None:
    with new_file(str(target)) as part:
        Path(part).write_bytes(b"half")
        channel.send(part)
        channel.recv()


def verified(path: Path) -> int:
    with flightlog.open_log(path, discover=False) as log:
        log.check_file()
        return sum(log.session(name).verify() for name in log.names())


def test_a_backup_is_private_closed_and_witnessed_and_holds_everything(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    files.rich(source)
    with flightlog.open_log(source, discover=False) as log:
        log.backup(copy)
    assert files.content(copy) == files.content(source)
    assert verified(copy) == verified(source)
    names = {entry.name for entry in tmp_path.iterdir() if entry.name.startswith("b")}
    assert names == {"b.db", "b.db-head"}
    assert [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in names] == [0o600, 0o600]
    with files.plain(copy) as shell:
        assert shell.execute("SELECT is_open FROM open_mark").fetchone() == (0,)
        assert shell.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert shell.execute("SELECT max(id) FROM events").fetchone() == (read_witness(str(copy)),)
        assert shell.execute("SELECT count(*) FROM blobs").fetchone() != (0,)


def test_looking_at_a_source_for_a_backup_changes_no_byte_of_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    files.written(tmp_path / "a" / "a.db", "one")
    before = files.photograph(tmp_path / "a")
    back_up(str(tmp_path / "a" / "a.db"), str(tmp_path / "b.db"))
    assert files.photograph(tmp_path / "a") == before


async def test_a_kernel_backs_up_while_a_session_is_open_and_the_copy_can_be_resumed(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    model = FakeModel([words("one"), words("two")])
    async with kernels.opened(source, model) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("first")
        await session.run()
        await session.followup("waits")
        await kernel.backup(copy)
        await session.run()
    assert len(kernels.kinds_of(copy)) < len(kernels.kinds_of(source))
    async with kernels.session_of(copy, model) as session:
        assert (await session.run()).text == "two"
    assert verified(copy)


@pytest.mark.kill
def test_each_copy_of_a_file_in_use_is_a_state_it_was_in(tmp_path: Path) -> None:
    source = tmp_path / "a.db"
    copies = [tmp_path / f"{number}.db" for number in range(4)]
    with files.Child(keep_writing, source) as writer:
        assert writer.receive() == "writing"
        ends = [back_up(str(source), str(copy)) for copy in copies]
        writer.kill()
    assert 22 <= ends[0] < ends[-1]
    assert ends == sorted(ends)
    all_of_it = files.content(source)
    for copy, end in zip(copies, ends, strict=True):
        assert verified(copy) == end
        for name, records in files.content(copy).items():
            assert records == all_of_it[name][: len(records)]


@pytest.mark.kill
def test_a_backup_of_what_a_killed_process_left_is_whole(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    with files.Child(keep_writing, source) as writer:
        writer.receive()
        writer.kill()
    before = files.photograph(tmp_path)
    back_up(str(source), str(copy))
    assert {name: taken for name, taken in files.photograph(tmp_path).items() if name in before} == before
    assert files.content(copy) == files.content(source)
    with files.opened(copy) as store:
        files.Pen(store, "more").say("more")


@pytest.mark.kill
def test_a_kill_leaves_no_half_file_under_the_final_name(tmp_path: Path) -> None:
    target = tmp_path / "b.db"
    with files.Child(write_half, target) as child:
        part = child.receive()
        child.kill()
    assert not target.exists()
    assert Path(part).read_bytes() == b"half"
    files.written(tmp_path / "a.db", "one")
    back_up(str(tmp_path / "a.db"), str(target))
    assert verified(target)


def size_of(part: Path) -> int:
    """How large it is; nothing once it has got its name."""
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.kill
def test_whenever_a_backup_is_killed_there_is_a_whole_copy_or_none(tmp_path: Path) -> None:
    source = tmp_path / "a.db"
    files.written(source, *("x" * 60_000 for _ in range(60)))
    ended = set()
    for bytes_min in (1, 200_000, 1_000_000, 3_000_000, 1 << 40):
        target = tmp_path / f"{bytes_min}.db"
        with files.Child(keep_backing_up, source, target) as child:
            child.receive()
            while not target.exists() and not any(
                size_of(part) >= bytes_min for part in tmp_path.glob(f"{target.name}.*.part")
            ):
                os.sched_yield()
            child.kill()
        ended.add(target.exists())
        if target.exists():
            assert verified(target) == verified(source)
    assert ended == {True, False}


@pytest.mark.parametrize("there", ["", "-wal", "-head", "-shm", "-journal"])
def test_nothing_that_is_there_is_overwritten(there: str, tmp_path: Path) -> None:
    files.written(tmp_path / "a.db", "one")
    (tmp_path / f"b.db{there}").write_bytes(b"mine")
    before = files.photograph(tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        back_up(str(tmp_path / "a.db"), str(tmp_path / "b.db"))
    assert files.photograph(tmp_path) == before


def test_a_file_that_came_to_stand_there_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "b"

    def write() -> None:
        with new_file(str(target)) as part:
            Path(part).write_bytes(b"ours")
            target.write_bytes(b"theirs")

    with pytest.raises(UsageError, match="exists already"):
        write()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"b": b"theirs"}


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    files.written(tmp_path / "a.db", "one")
    with pytest.raises(UsageError, match=r"b\.db: its folder does not exist"):
        back_up(str(tmp_path / "a.db"), str(tmp_path / "none" / "b.db"))


def test_a_log_that_is_refused_is_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "a.db"
    files.written(source, "one")
    with files.plain(source) as shell:
        shell.execute("PRAGMA foreign_keys = OFF")
        shell.execute("DROP TRIGGER session_keys_delete")
        shell.execute("DELETE FROM session_keys")
    with pytest.raises(LogCorrupt, match="session-known"):
        back_up(str(source), str(tmp_path / "b.db"))
    assert not list(tmp_path.glob("b.db*"))


def test_a_closed_file_that_gets_a_writer_during_the_copy_is_copied_anew(tmp_path: Path) -> None:
    """Read as it is while nobody has it open; a writer that comes makes that snapshot worthless."""
    source, part = tmp_path / "a.db", tmp_path / "part"
    files.written(source, "one")
    files.look(source)
    assert not Path(f"{source}-wal").exists()
    reader = ApswDatabase(str(source), read_only=True, immutable=True)
    reader.configure(read_only=True)
    part.touch()
    with files.opened(source) as store:
        files.Pen(store).say("two")
        reader.copy_into(str(part))
    reader.close()
    with files.plain(part) as shell:
        assert shell.execute("SELECT count(*) FROM events").fetchone() == (4,)
