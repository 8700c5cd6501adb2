"""A full disk, at creation and in the middle: named, nothing acknowledged is lost, nothing goes on until reopened."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from flightlog.store.store import Store
from flightlog_hookspecs.errors import DiskFull, StoreError, StoreStopped
from support.files import Child, Pen, opened, outcome, texts, written

TEXT = "x" * 3000


def say_until_refused(store: Store, first: int) -> tuple[int, str]:
    """Write until the store gives up; how many messages were acknowledged, and the name of the error."""
    pen = Pen(store)
    number = first
    try:
        while number < 5000:
            pen.say(f"{number} {TEXT}", barrier=number % 3 != 1)
            number += 1
    except StoreError as error:
        with pytest.raises(StoreStopped):
            pen.say("refused")
        with pytest.raises(StoreStopped):
            store.check_alive()
        return number, type(error).__name__
    raise AssertionError("the disk never became full")


def barriers(count: int) -> int:
    """Of `count` messages, how many are acknowledged: an ordinary one is with the next barrier."""
    return count - (count > 0 and (count - 1) % 3 == 1)


def check_goes_on(path: Path, acknowledged: int) -> None:
    """Reopen: what was acknowledged is there, nothing is torn, and it can be written again."""
    before = [text.split(maxsplit=1)[0] for text in texts(path)]
    assert before == [str(number) for number in range(len(before))]
    assert barriers(acknowledged) <= len(before) <= acknowledged + 1
    written(path, "goes on")
    assert texts(path)[-1] == "goes on"


def test_a_full_database_is_named_and_stops_the_store(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pages = store.database._connection.pragma("page_count")  # type: ignore[attr-defined]
        store.database._connection.pragma("max_page_count", pages + 60)  # type: ignore[attr-defined]
        acknowledged, error = say_until_refused(store, 0)
    assert error == "DiskFull"
    assert acknowledged > 20
    check_goes_on(path, acknowledged)


def test_the_error_of_a_full_disk_says_where_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        store.database._connection.pragma("max_page_count", 1)  # type: ignore[attr-defined]
        with pytest.raises(DiskFull) as caught:
            say_until_full(store)
    assert str(path) in str(caught.value)
    assert "free space, then reopen" in str(caught.value)


def say_until_full(store: Store) -> None:
    pen = Pen(store)
    for _ in range(1000):
        pen.say(TEXT)


# ---------------------------------------------------------------- a limit on the size of files


def create_limited(path: Path, limit: int) -> str:
    """Open a fresh file while no file may be larger than `limit`; the name of the error, if any."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with opened(path):
            return "opened"
    except StoreError as error:
        return type(error).__name__ if str(path) in str(error) else "an error without the path"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.kill
def test_a_disk_that_is_full_at_any_moment_of_the_creation_is_named_and_the_next_creation_succeeds(
    tmp_path: Path,
) -> None:
    names = {}
    for limit in (0, 1, 512, 1024, 4096, 4097, 8192, 20_000, 32_768, 40_000, 65_536, 100_000, 1_000_000):
        path = tmp_path / f"{limit}.db"
        names[limit] = outcome(create_limited, path, limit)
        written(path, "first")
        assert texts(path) == ["first"], limit
    assert set(names.values()) == {"DiskFull", "opened"}, names
    assert names[0] == "DiskFull"
    assert names[1_000_000] == "opened"


def say_limited(channel: Connection, path: Path, first: int, limit: int) -> None:
    with opened(path) as store:
        Pen(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        channel.send(say_until_refused(store, first))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with pytest.raises(StoreStopped):  # also when there is room again
            Pen(store, "other")


@pytest.mark.kill
def test_a_disk_that_becomes_full_in_the_middle_loses_nothing_acknowledged(tmp_path: Path) -> None:
    for limit in (70_000, 100_000, 131_072, 200_000):
        path = tmp_path / f"{limit}.db"
        acknowledged, error = outcome_of(path, limit)
        assert error == "DiskFull", limit
        check_goes_on(path, acknowledged)


def outcome_of(path: Path, limit: int) -> tuple[int, str]:
    with Child(say_limited, path, 0, limit) as child:
        acknowledged, error = child.receive()
        assert child.rest() == []
        child.wait()
    return acknowledged, error


# ---------------------------------------------------------------- a disk that really is full


def small_disk(folder: Path) -> bool:
    """Mount one megabyte of memory at `folder`, for this process alone. False where that is not allowed."""
    libc = ctypes.CDLL(None)
    clone_newns, clone_newuser = 0x00020000, 0x10000000
    ms_rec, ms_private = 0x4000, 0x40000
    if libc.unshare(clone_newns if os.geteuid() == 0 else clone_newns | clone_newuser):
        return False
    if libc.mount(None, b"/", None, ms_rec | ms_private, None):
        return False
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=1m"):
        return False
    try:
        (folder / "probe").touch()
    except OSError:
        return False
    return True


def fill_it_up(channel: Connection, folder: Path, sizes: list[int]) -> None:
    """Create and write a log on a disk with so many bytes left, again and again."""
    if not small_disk(folder):
        channel.send("not possible here")
        return
    channel.send("mounted")
    for size in sizes:
        for entry in folder.iterdir():
            entry.unlink()
        fill(folder, leaving=size)
        path, acknowledged = folder / "log.db", 0
        try:
            with opened(path) as store:
                acknowledged, error = say_until_refused(store, 0)
        except StoreError as refusal:
            error = type(refusal).__name__
        with suppress(StoreError), opened(path):
            pass  # it is still full, so this may well be refused
        (folder / "ballast").unlink()
        if acknowledged:
            check_goes_on(path, acknowledged)
        else:
            written(path, "first")
            assert texts(path)[-1] == "first"
        channel.send((size, acknowledged, error))


def fill(folder: Path, *, leaving: int) -> None:
    status = os.statvfs(folder)
    (folder / "ballast").write_bytes(b"\0" * max(0, status.f_bavail * status.f_frsize - leaving))


@pytest.mark.kill
def test_a_disk_that_really_is_full_is_named_and_loses_nothing(tmp_path: Path) -> None:
    sizes = [0, 4096, 8192, 20_480, 40_960, 61_440, 81_920, 102_400, 122_880, 143_360, 200_704, 300_000, 500_000]
    with Child(fill_it_up, tmp_path, sizes) as child:
        if child.receive() != "mounted":
            pytest.skip("no mount namespace for a small disk")
        ends = child.rest()
        child.wait()
    assert [size for size, _, _ in ends] == sizes
    assert {error for _, _, error in ends} == {"DiskFull"}, ends
    assert ends[0][1] == 0
    assert ends[-1][1] > 10
