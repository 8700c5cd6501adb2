"""Writing and editing: all or nothing, whenever it is killed, and safe to repeat."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs import ToolContext
from flightlog_hookspecs.errors import ToolError
from flightlog_plugins import files
from flightlog_plugins.files import (
    confinement,
    edit_file,
    editing,
    list_files,
    read_file,
    replacing,
    search_files,
    write_file,
)
from flightlog_plugins.files.editing import edited, is_made
from support.memory_folder import subfolder
from support.workspaces import call_in, context, whole_tree, work

__all__ = ["context", "work"]

Call = Callable[[ToolContext], str]


def test_a_new_file_gets_the_folders_that_it_needs(context: ToolContext, work: Path) -> None:
    assert "created" in write_file.body(context, "a/b/c.txt", "new\r\n")
    assert (work / "a/b/c.txt").read_bytes() == b"new\r\n"


def test_a_file_keeps_its_rights_when_it_is_written_or_edited(context: ToolContext, work: Path) -> None:
    (work / "note.txt").chmod(0o751)
    write_file.body(context, "note.txt", "two\n")
    edit_file.body(context, "note.txt", "two", "three")
    assert (work / "note.txt").stat().st_mode & 0o7777 == 0o751


@pytest.mark.parametrize(
    ("content", "old", "new"),
    [
        (b"a" * 3_000, b"a", b"a" * 1_500),  # each place of many in each place of many
        (b"a" * 400_000, b"a" * 200_000, b"a" * 200_001),  # few places, and much at each
        (b"a" * 2_000_000, b"a", b"aa"),
    ],
)
def test_an_edit_that_would_take_too_many_looks_is_refused(content: bytes, old: bytes, new: bytes) -> None:
    with pytest.raises(ToolError, match="too often"):
        edited(content, old, new)


def test_places_are_not_counted_beyond_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editing, "PLACES_MAX", 2)
    with pytest.raises(ToolError, match="more than once"):
        edited(b"aaaa", b"a", b"b")


@pytest.mark.parametrize("call", ["edit", "write"])
async def test_what_was_answered_as_cut_off_changes_nothing_any_more(
    call: str, context: ToolContext, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, cut, ended = threading.Event(), threading.Event(), threading.Event()
    is_changed = replacing._is_changed

    def waits(*arguments: Any) -> bool:
        reached.set()
        cut.wait()
        return is_changed(*arguments)

    def body() -> None:
        try:
            if call == "edit":
                edit_file.body(context, "note.txt", "one", "two")
            else:
                write_file.body(context, "note.txt", "two\n")
        finally:
            ended.set()

    monkeypatch.setattr(replacing, "_is_changed", waits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.to_thread.run_sync, body, abandon_on_cancel=True))
        await trio.to_thread.run_sync(reached.wait)
        nursery.cancel_scope.cancel()
    cut.set()
    await trio.to_thread.run_sync(ended.wait)
    assert (work / "note.txt").read_text() == "one\n"
    assert not list(work.glob(f"{confinement.UNFINISHED}*"))


def test_a_hard_link_to_the_outside_is_not_written_through(tmp_path: Path, context: ToolContext, work: Path) -> None:
    os.link(tmp_path / "outside/secret.txt", work / "hard.txt")
    write_file.body(context, "hard.txt", "mine\n")
    assert (tmp_path / "outside/secret.txt").read_text() == "secret\n"
    assert (work / "hard.txt").read_text() == "mine\n"


def test_a_write_protected_file_is_left_alone(context: ToolContext, work: Path) -> None:
    (work / "note.txt").chmod(0o444)
    for call in (
        lambda: write_file.body(context, "note.txt", "x"),
        lambda: edit_file.body(context, "note.txt", "o", "x"),
    ):
        with pytest.raises(ToolError, match="write-protected"):
            call()
    assert (work / "note.txt").read_text() == "one\n"


def test_what_is_too_large_is_refused_before_anything_changes(context: ToolContext, work: Path) -> None:
    before = whole_tree(work)
    with pytest.raises(ToolError, match="larger than"):
        write_file.body(context, "new/large.txt", "x" * (files.WRITE_MAX_BYTES + 1))
    with pytest.raises(ToolError, match="larger than"):
        edit_file.body(context, "note.txt", "one", "x" * files.WRITE_MAX_BYTES)
    assert whole_tree(work) == before
    assert not (work / "new").exists()


def test_text_that_is_no_unicode_is_refused(context: ToolContext, work: Path) -> None:
    before = whole_tree(work)
    with pytest.raises(ToolError, match="no Unicode"):
        write_file.body(context, "new.txt", "\ud800")
    with pytest.raises(ToolError, match="no Unicode"):
        edit_file.body(context, "note.txt", "one", "\ud800")
    assert whole_tree(work) == before


def test_an_edit_touches_nothing_else_of_the_file(context: ToolContext, work: Path) -> None:
    """Line ends, bytes that are no text and a missing last line break stay as they are."""
    (work / "odd").write_bytes(b"\xff\xfe\r\nhere\r\n\0tail")
    edit_file.body(context, "odd", "here", "thére")
    assert (work / "odd").read_bytes() == b"\xff\xfe\r\nth\xc3\xa9re\r\n\0tail"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "x", "must not be empty"),
        ("one", "one", "must differ"),
        ("two", "three", "does not stand in it"),
        ("n", "m", "more than once"),
        ("a\nb", "c", "end with"),
    ],
)
def test_an_edit_that_is_not_one_place_is_refused(
    context: ToolContext, work: Path, old: str, new: str, says: str
) -> None:
    (work / "f").write_bytes(b"one\r\nan a\r\nb\r\n")
    with pytest.raises(ToolError, match=says):
        edit_file.body(context, "f", old, new)
    assert (work / "f").read_bytes() == b"one\r\nan a\r\nb\r\n"


def test_an_edit_of_a_file_that_is_missing_makes_none(context: ToolContext, work: Path) -> None:
    with pytest.raises(ToolError, match="No such file"):
        edit_file.body(context, "missing/f", "a", "b")
    with pytest.raises(ToolError, match="No such file"):
        edit_file.body(context, "missing", "a", "b")
    assert not (work / "missing").exists()


def test_an_edit_whose_repetition_would_edit_again_is_refused_at_once() -> None:
    """What is left of it next to the new text would be taken for the old one."""
    with pytest.raises(ToolError, match="around it"):
        edited(b"abb", b"ab", b"a")
    with pytest.raises(ToolError, match="around it"):
        edited(b"aabb", b"ab", b"")


def test_an_edit_that_keeps_the_old_text_within_the_new_one_is_not_made_twice() -> None:
    once = edited(b"import os\n", b"import os\n", b"import os\nimport re\n")
    assert once == b"import os\nimport re\n"
    assert edited(once, b"import os\n", b"import os\nimport re\n") is None


few = st.lists(st.sampled_from([b"a", b"b", b"\r\n"]), max_size=7).map(b"".join)


@given(content=few, old=few, new=few)
def test_every_edit_that_is_made_is_recognised_when_it_is_repeated(content: bytes, old: bytes, new: bytes) -> None:
    try:
        result = edited(content, old, new)
    except ToolError:
        return
    if result is None:
        assert is_made(content, old, new)
    else:
        assert result == content.replace(old, new, 1)
        assert edited(result, old, new) is None


def test_repeating_a_write_or_an_edit_changes_nothing_and_says_so(context: ToolContext, work: Path) -> None:
    write_file.body(context, "note.txt", "new\n")
    before = (work / "note.txt").stat()
    assert "already" in write_file.body(context, "note.txt", "new\n")
    edit_file.body(context, "folder/inner.txt", "inner", "outer")
    assert "as this edit would leave it" in edit_file.body(context, "folder/inner.txt", "inner", "outer")
    assert (work / "note.txt").stat() == before
    assert (work / "folder/inner.txt").read_text() == "outer\n"


def test_a_file_that_somebody_changes_meanwhile_is_not_overwritten(
    context: ToolContext, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synced(fd: int) -> None:
        (work / "note.txt").write_text("theirs, and longer\n")

    monkeypatch.setattr(replacing.os, "fsync", synced)
    with pytest.raises(ToolError, match="changed by somebody else"):
        edit_file.body(context, "note.txt", "one", "mine")
    assert (work / "note.txt").read_text() == "theirs, and longer\n"
    assert not leftovers(work)


class Killed(BaseException):
    """The process ends here."""


class DyingOs:
    """`os`, until the process is killed at its `point`-th call: from then on no call does anything.

    What it had open is closed then, as the system does, so its locks go with it.
    """

    def __init__(self, point: int) -> None:
        self.left = point
        self.fds: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real) or name in ("stat_result", "fsencode", "fspath"):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                for fd in self.fds:
                    os.close(fd)
                self.left = -1
            if self.left < 0:
                raise Killed
            self.left -= 1
            result = real(*arguments, **options)
            if name == "open":
                self.fds.add(result)
            elif name == "close":
                self.fds.discard(arguments[0])
            return result

        return call


def leftovers(work: Path) -> list[str]:
    """Files that a killed write has left."""
    return [path.name for path in work.rglob(f"{confinement.UNFINISHED}*")]


WRITES: dict[str, tuple[Call, str, str | None, str]] = {
    "over": (lambda call: write_file.body(call, "note.txt", "new\n" * 3), "note.txt", "one\n", "new\n" * 3),
    "new": (lambda call: write_file.body(call, "d/e/new.txt", "new\n"), "d/e/new.txt", None, "new\n"),
    "edit": (lambda call: edit_file.body(call, "note.txt", "one", "one two"), "note.txt", "one\n", "one two\n"),
}


@pytest.mark.parametrize("which", WRITES)
def test_killed_at_every_point_a_write_can_be_repeated_and_leaves_nothing_behind(
    which: str, context: ToolContext, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, path, old, new = WRITES[which]
    ended, points, left = False, 0, 0
    before = whole_tree(tmp_path)
    while not ended:
        with monkeypatch.context() as patch:
            dying = DyingOs(points)
            for module in (confinement, replacing):
                patch.setattr(module, "os", dying)
            try:
                write(context)
                ended = True
            except Killed:
                points += 1
        now = (work / path).read_text() if (work / path).exists() else None
        assert now in (old, new), "a reader sees the old content or the new one"
        left += len(leftovers(work))
        assert confinement.UNFINISHED not in list_files.body(context, pattern="**") + list_files.body(
            context, pattern=".*"
        )
        assert confinement.UNFINISHED not in search_files.body(context, "new", pattern="**/.*")
        write(context)  # the repetition after the crash
        assert (work / path).read_text() == new
        assert not leftovers(work), "the next write has cleared up"
        if old is None:
            (work / path).unlink()
        else:
            (work / path).write_text(old)
        if path.startswith("d/"):
            (work / "d/e").rmdir()
            (work / "d").rmdir()
        assert whole_tree(tmp_path) == before
    assert points > 15, "it was killed at each of its calls"
    assert left, "some of the deaths left a file behind"


@pytest.mark.kill
def test_a_process_that_is_really_killed_leaves_the_old_content_and_the_next_write_clears_up(
    context: ToolContext, work: Path
) -> None:
    program = """if True:
        import os, signal, sys
        from support.workspaces import call_in
        from flightlog_plugins.files import replacing, write_file
        replacing.os.rename = lambda *a, **b: os.kill(os.getpid(), signal.SIGKILL)
        write_file.body(call_in(sys.argv[1]), "note.txt", "new")
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program, str(work)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (work / "note.txt").read_text() == "one\n"
    assert len(leftovers(work)) == 1
    write_file.body(context, "other.txt", "x")
    assert not leftovers(work)


def test_a_file_that_another_write_needs_still_is_not_cleared_away(context: ToolContext, work: Path) -> None:
    folder = os.open(work, os.O_RDONLY)
    with replacing._unfinished(folder, 0o600) as (_, name):
        write_file.body(context, "other.txt", "x")
        assert leftovers(work) == [name]
    os.close(folder)
    assert not leftovers(work)


def test_what_only_looks_like_a_leftover_does_no_harm(tmp_path: Path, context: ToolContext, work: Path) -> None:
    """Not the log under such a name, not a link, not a pipe, not a folder."""
    start = work / confinement.UNFINISHED
    os.link(work / "a.db", f"{start}1")
    os.symlink(tmp_path / "outside/secret.txt", f"{start}2")
    os.mkfifo(f"{start}3")
    os.mkdir(f"{start}4")
    write_file.body(context, "other.txt", "x")
    assert len(leftovers(work)) == 4
    assert (tmp_path / "outside/secret.txt").exists()
    for path in (f"{confinement.UNFINISHED}1", f"{confinement.UNFINISHED}4/x"):
        with pytest.raises(ToolError, match="under way"):
            read_file.body(context, path)
        with pytest.raises(ToolError, match="under way"):
            write_file.body(context, path, "x")


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "fchmod"])
def test_a_disk_that_fails_leaves_the_old_content_and_no_leftover(
    call: str, context: ToolContext, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(replacing.os, call, fails)
    with pytest.raises(ToolError, match="it was not changed"):
        write_file.body(context, "note.txt", "new")
    assert (work / "note.txt").read_text() == "one\n"
    assert not leftovers(work)


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=4))
def test_a_file_holds_what_was_written_last_byte_for_byte(texts: list[str], tmp_path: Path) -> None:
    work = subfolder(tmp_path)
    for text in texts:
        write_file.body(call_in(work), "f", text)
        assert (work / "f").read_bytes() == text.encode() == read_file.body(call_in(work), "f")
