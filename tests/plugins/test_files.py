"""The files plugin: reads and appends inside the workspace, and nowhere else, whatever the path."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import ToolContext
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import ToolResult
from flightlog_plugins import files
from flightlog_plugins.files import append_line, read_file
from support.kernels import events_of, opened
from support.memory_folder import subfolder


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
    return ToolContext(
        invocation_id="i",
        session="s",
        turn=1,
        step=1,
        position=0,
        call_id="c",
        deadline=0.0,
        workspace=str(work),
        protected=tuple(f"{os.path.realpath(log)}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-head")),
    )


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


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: repr(path)[:40])
def test_no_path_leads_out_of_the_workspace(tmp_path: Path, context: ToolContext, path: str) -> None:
    before = whole_tree(tmp_path)
    with pytest.raises(ToolError):
        read_file.body(context, path)
    with pytest.raises(ToolError):
        append_line.body(context, path, "intruder")
    assert whole_tree(tmp_path) == before


def test_an_absolute_path_into_the_workspace_is_refused_as_well(context: ToolContext, work: Path) -> None:
    with pytest.raises(ToolError, match="not a path inside the workspace"):
        read_file.body(context, str(work / "note.txt"))


@given(
    parts=st.lists(
        st.sampled_from(
            ["..", ".", "", "link", "loop", "folder", "note.txt", "link.txt", "outside", "secret.txt", "~"]
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_combination_of_parts_leads_out(parts: list[str], tmp_path: Path) -> None:
    root = subfolder(tmp_path)
    work, outside = root / "work", root / "outside"
    (work / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (work / "link").symlink_to(outside)
    (work / "link.txt").symlink_to(outside / "secret.txt")
    call = ToolContext(
        invocation_id="i", session="s", turn=1, step=1, position=0, call_id="c", deadline=0.0, workspace=str(work)
    )
    path = "/".join(parts)
    with suppress(ToolError):
        assert read_file.body(call, path) != b"secret\n"
    with suppress(ToolError):
        append_line.body(call, path, "intruder")
    assert whole_tree(outside) == {"secret.txt": b"secret\n"}


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", "-head"])
@pytest.mark.parametrize("how", ["{}", "./{}", "folder/hard"])
def test_the_log_and_its_companions_cannot_be_touched_also_not_made(
    tmp_path: Path, context: ToolContext, work: Path, suffix: str, how: str
) -> None:
    """By identity, so that neither another spelling nor a hard link helps."""
    target = work / f"a.db{suffix}"
    if "hard" in how:
        if not target.exists():
            target.write_bytes(b"companion")
        os.link(target, work / "folder" / "hard")
    before = whole_tree(tmp_path)
    path = how.format(f"a.db{suffix}")
    with pytest.raises(ToolError):
        append_line.body(context, path, "forged")
    with pytest.raises(ToolError):
        read_file.body(context, path)
    assert whole_tree(tmp_path) == before


def test_a_log_outside_of_the_workspace_protects_nothing_in_it(context: ToolContext, work: Path) -> None:
    (work / "b.db").write_text("not a log\n")
    assert read_file.body(context, "b.db") == b"not a log\n"


def test_without_a_workspace_there_is_nothing_to_read(context: ToolContext) -> None:
    bare = evolve(context, workspace="")
    for call in (lambda: read_file.body(bare, "note.txt"), lambda: append_line.body(bare, "note.txt", "x")):
        with pytest.raises(ToolError, match="no workspace"):
            call()


def test_a_workspace_that_is_gone_is_a_plain_refusal(context: ToolContext) -> None:
    gone = evolve(context, workspace=context.workspace + "-gone")
    with pytest.raises((ToolError, OSError)):
        read_file.body(gone, "note.txt")


@pytest.mark.parametrize("path", ["note.txt", "./note.txt", ".//note.txt", "folder/inner.txt", "folder/./inner.txt"])
def test_files_inside_are_read_as_they_are(context: ToolContext, path: str) -> None:
    assert read_file.body(context, path) in (b"one\n", b"inner\n")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(context: ToolContext, work: Path) -> None:
    with (work / "large").open("wb") as file:
        file.truncate(files.READ_MAX_BYTES + 1)
    with pytest.raises(ToolError, match="larger than"):
        read_file.body(context, "large")
    os.truncate(work / "large", files.READ_MAX_BYTES)
    assert len(read_file.body(context, "large")) == files.READ_MAX_BYTES


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), max_size=5))
def test_each_append_adds_exactly_one_line(lines: list[str], tmp_path: Path) -> None:
    work = subfolder(tmp_path)
    call = ToolContext(
        invocation_id="i", session="s", turn=1, step=1, position=0, call_id="c", deadline=0.0, workspace=str(work)
    )
    for line in lines:
        append_line.body(call, "log.txt", line)
    written = (work / "log.txt").read_bytes().decode() if lines else ""
    assert written == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("line", ["two\nlines", "\n", "end\n", "carriage\rreturn", "both\r\n"])
def test_a_line_with_a_break_in_it_is_refused_and_nothing_is_written(
    context: ToolContext, work: Path, line: str
) -> None:
    with pytest.raises(ToolError, match="line break"):
        append_line.body(context, "note.txt", line)
    assert (work / "note.txt").read_text() == "one\n"


def test_a_file_whose_last_line_is_open_gets_a_line_of_its_own(context: ToolContext, work: Path) -> None:
    (work / "note.txt").write_text("no break at the end")
    append_line.body(context, "note.txt", "mine")
    assert (work / "note.txt").read_text() == "no break at the end\nmine\n"


def test_text_that_is_no_unicode_is_refused_and_nothing_is_written(context: ToolContext, work: Path) -> None:
    with pytest.raises((ToolError, UnicodeError)):
        append_line.body(context, "note.txt", "lone \ud800 half")
    assert (work / "note.txt").read_text() == "one\n"


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond ten bytes: a write goes half way, then fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_line_that_fits_only_in_part_is_an_error_and_not_a_success(
    context: ToolContext, work: Path, full_disk: None
) -> None:
    with pytest.raises(ToolError, match=os.strerror(errno.EFBIG)):
        append_line.body(context, "new.txt", "more than ten bytes")


async def test_through_a_session_a_path_that_leads_out_is_one_error_result(tmp_path: Path, work: Path) -> None:
    path = work / "b.db"
    wanted = calls(
        ("append_line", {"path": "made.txt", "line": "hello"}),
        ("read_file", {"path": "made.txt"}),
        ("read_file", {"path": "../outside/secret.txt"}),
        ("append_line", {"path": "b.db", "line": "forged"}),
        ("append_line", {"path": "b.db-wal", "line": "forged"}),
        ("append_line", {"path": "b.db-head", "line": "forged"}),
        ("read_file", {"path": "b.db"}),
    )
    model = FakeModel([wanted])
    tools = [append_line, read_file]
    async with (
        opened(path, model, *tools, workspace=work) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("hi")
        await session.run()
    results = sorted(events_of(path, ToolResult), key=lambda result: result.position)
    assert [result.outcome for result in results] == ["ok", "ok", *["error"] * 5]
    assert results[1].text == "hello\n"
    with flightlog.open_log(path, discover=False) as log:
        assert log.session("s").verify()
