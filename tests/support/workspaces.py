"""A workspace with everything in it that could lead out, and a call that works there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flightlog_hookspecs import ToolContext

SUFFIXES = ("", "-wal", "-shm", "-journal", "-head")


def call_in(work: Path, protected: tuple[str, ...] = ()) -> ToolContext:
    """A call whose workspace is `work`."""
    return ToolContext(
        invocation_id="i",
        session="s",
        turn=1,
        step=1,
        position=0,
        call_id="c",
        deadline=0.0,
        workspace=str(work),
        protected=protected,
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with a file, a folder, and everything that could lead out of it."""
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    (work / "note.txt").write_text("one\n")
    (work / "folder" / "inner.txt").write_text("inner\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (work / "link.txt").symlink_to(outside / "secret.txt")
    (work / "link").symlink_to(outside)
    (work / "loop").symlink_to("loop")
    (work / "dangling.txt").symlink_to(outside / "made.txt")
    (work / "inner link.txt").symlink_to("note.txt")
    os.mkfifo(work / "fifo")
    return work


@pytest.fixture
def context(work: Path) -> ToolContext:
    """A call in that workspace, whose log lies in it too."""
    log = work / "a.db"
    for suffix in ("", "-wal", "-head"):
        Path(f"{log}{suffix}").write_bytes(b"log")
    return call_in(work, tuple(f"{os.path.realpath(log)}{suffix}" for suffix in SUFFIXES))


OUTSIDE = [
    "../outside/secret.txt",
    "folder/../../outside/secret.txt",
    "folder/..",
    "..",
    "link.txt",
    "link/secret.txt",
    "inner link.txt",
    "loop",
    "loop/x",
    "dangling.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/",
    "",
    ".",
    "./",
    "folder",
    "folder/",
    "fifo",
    "note.txt/x",
    "nul\0.txt",
    "note.txt\0",
    "x" * 300,
    "/dev/null",
    "folder/./../note.txt",
]


def whole_tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below `folder`, links as what they point to."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
