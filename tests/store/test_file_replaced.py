"""The file, its -wal or its -shm moved, deleted or replaced while it is open: nothing more is acknowledged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from flightlog.store import file_identity, log_file
from flightlog.store.store import Store
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool, tool
from flightlog_hookspecs.errors import FileReplaced, StoreError, StoreStopped
from support import kernels
from support.files import Child, Pen, content, look, opened, photograph, texts, written

SUFFIXES = ["", "-wal", "-shm"]


def delete(name: str) -> None:
    os.unlink(name)


def move(name: str) -> None:
    os.rename(name, f"{name}.moved")


def replace_by_a_copy(name: str) -> None:
    shutil.copy2(name, f"{name}.copy")
    os.replace(f"{name}.copy", name)


def replace_by_a_link(name: str) -> None:
    os.rename(name, f"{name}.moved")
    os.symlink(f"{name}.copy", name)
    shutil.copy2(f"{name}.moved", f"{name}.copy")


@pytest.mark.parametrize("how", [delete, move, replace_by_a_copy, replace_by_a_link])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_next_commit_is_refused_and_writes_nothing(tmp_path: Path, suffix: str, how: Callable[[str], None]) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("acknowledged")
        how(f"{path}{suffix}")
        before = photograph(tmp_path)
        with pytest.raises(FileReplaced, match="Nothing more is written"):
            pen.say("never acknowledged")
        with pytest.raises(StoreStopped):
            pen.say("nor is this")
        assert photograph(tmp_path) == before
    assert photograph(tmp_path) == before, "closing changed something"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_put_back_does_not_revive_a_stopped_store_but_opens_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        os.rename(f"{path}{suffix}", f"{path}.away")
        with pytest.raises(FileReplaced):
            pen.say("never")
        os.rename(f"{path}.away", f"{path}{suffix}")
        with pytest.raises(StoreStopped):
            store.check_alive()
    written(path, "two")
    assert texts(path) == ["one", "two"]


def join(channel: Connection, path: Path) -> None:
    """Another process opens what it finds under the name and writes to it."""
    with opened(path) as store:
        Pen(store, "other").say("elsewhere")
    channel.send("written")


@pytest.mark.kill
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_companion_that_another_process_made_anew_is_noticed_before_the_next_acknowledgement(
    tmp_path: Path, suffix: str
) -> None:
    """The worst case: both would write on, each to its own -wal."""
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        look(path)
        os.unlink(f"{path}{suffix}")
        with Child(join, path) as child, suppress(StoreError):
            child.rest()  # whether it succeeds is its business
        before = photograph(tmp_path)
        with pytest.raises(FileReplaced):
            pen.say("two")
        assert photograph(tmp_path) == before
    assert photograph(tmp_path) == before


def test_a_renamed_folder_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with opened(folder / "log.db") as store:
        pen = Pen(store)
        pen.say("one")
        folder.rename(tmp_path / "renamed")
        with pytest.raises(FileReplaced):
            pen.say("two")
    assert texts(tmp_path / "renamed" / "log.db") == ["one"]


def test_effects_are_refused_too_once_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        Pen(store)
        path.unlink()
        for _ in range(2):
            with pytest.raises((FileReplaced, StoreStopped)):
                store.check_alive()


async def run_once(path: Path, model: FakeModel, tool: Tool) -> None:
    async with kernels.session_of(path, model, tool) as session:
        await session.followup("work")
        await session.run()


async def test_a_session_whose_file_is_replaced_in_mid_turn_calls_neither_model_nor_tool_again(
    tmp_path: Path,
) -> None:
    path, ran = tmp_path / "log.db", []

    @tool
    def work(number: int) -> str:
        """Work on something."""
        ran.append(number)
        if number == 1:
            replace_by_a_copy(str(path))
        return "done"

    model = FakeModel([calls(("work", {"number": 1}), ("work", {"number": 2})), words("Done.")])
    with pytest.raises((FileReplaced, StoreStopped)):
        await run_once(path, model, work)
    assert ran == [1]
    assert len(model.requests) == 1


def test_a_file_replaced_while_it_is_being_opened_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    mark_open = log_file._mark_open

    def then_replaced(*arguments: object) -> None:
        mark_open(*arguments)  # type: ignore[arg-type]
        replace_by_a_copy(str(path))

    monkeypatch.setattr(log_file, "_mark_open", then_replaced)
    with pytest.raises(FileReplaced, match="Try again"):
        Store.open(str(path))


@pytest.mark.parametrize("cheap", [True, False], ids=["statx", "stat"])
def test_the_cheap_look_at_a_name_sees_what_the_plain_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: bool
) -> None:
    if not cheap:
        monkeypatch.setattr(file_identity, "_statx", None)
    path = tmp_path / "fïle"
    watched = file_identity.Watched(str(path), str(tmp_path))
    folder = tmp_path.stat()
    assert watched.first == [None, (folder.st_dev, folder.st_ino)]
    path.touch()
    assert watched.now() == [(path.stat().st_dev, path.stat().st_ino), (folder.st_dev, folder.st_ino)]
    assert watched.now() != watched.first
    os.symlink(path, tmp_path / "link")
    assert file_identity.Watched(str(tmp_path / "link")).first == watched.now()[:1]


def test_an_untouched_file_is_never_taken_for_a_replaced_one(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        store.database._connection.execute("PRAGMA wal_autocheckpoint = 3")  # type: ignore[attr-defined]
        pen = Pen(store)
        for number in range(40):
            pen.say("x" * 5000)
            if number % 10 == 0:
                look(path)
                with opened(path):
                    pass
                assert len(content(path)["s"]) == pen.acked
