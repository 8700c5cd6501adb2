"""The files plugin works inside the workspace, and nowhere else, whatever the path."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import FileBlock, ToolContext, ToolOutput
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import ToolResult
from flightlog_plugins import files
from flightlog_plugins.files import append_line, edit_file, list_files, read_file, search_files, write_file
from support.kernels import events_of, opened
from support.memory_folder import subfolder
from support.workspaces import OUTSIDE, call_in, context, whole_tree, work

__all__ = ["context", "work"]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: repr(path)[:40])
def test_no_path_leads_out_of_the_workspace(tmp_path: Path, context: ToolContext, path: str) -> None:
    before = whole_tree(tmp_path)
    with pytest.raises(ToolError):
        read_file.body(context, path)
    with pytest.raises(ToolError):
        append_line.body(context, path, "intruder")
    with pytest.raises(ToolError):
        write_file.body(context, path, "intruder")
    with pytest.raises(ToolError):
        edit_file.body(context, path, "secret", "intruder")
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
    call = call_in(work)
    path = "/".join(parts)
    with suppress(ToolError):
        assert read_file.body(call, path) != b"secret\n"
    with suppress(ToolError):
        append_line.body(call, path, "intruder")
    with suppress(ToolError):
        write_file.body(call, path, "intruder")
    with suppress(ToolError):
        edit_file.body(call, path, "secret", "intruder")
    with suppress(ToolError):
        assert "secret.txt:1" not in search_files.body(call, "secret", path)
    with suppress(ToolError):
        assert "secret.txt (" not in list_files.body(call, path, "**")
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
    with pytest.raises(ToolError):
        write_file.body(context, path, "forged")
    with pytest.raises(ToolError):
        write_file.body(context, f"{path}/made as a folder", "forged")
    with pytest.raises(ToolError):
        edit_file.body(context, path, "log", "forged")
    assert "a.db" not in list_files.body(context, pattern="**")
    assert "hard" not in list_files.body(context, pattern="**")
    assert search_files.body(context, "log") == "[nothing]"
    assert whole_tree(tmp_path) == before


def test_a_log_outside_of_the_workspace_protects_nothing_in_it(context: ToolContext, work: Path) -> None:
    (work / "b.db").write_text("not a log\n")
    assert read_file.body(context, "b.db") == b"not a log\n"


def test_without_a_workspace_there_is_nothing_to_read(context: ToolContext) -> None:
    bare = evolve(context, workspace="")
    for body, arguments in (
        (read_file.body, ["note.txt"]),
        (append_line.body, ["note.txt", "x"]),
        (write_file.body, ["note.txt", "x"]),
        (edit_file.body, ["note.txt", "one", "two"]),
        (list_files.body, []),
        (search_files.body, ["one"]),
    ):
        with pytest.raises(ToolError, match="no workspace"):
            body(bare, *arguments)


def test_a_workspace_that_is_gone_is_a_plain_refusal(context: ToolContext) -> None:
    gone = evolve(context, workspace=context.workspace + "-gone")
    with pytest.raises(ToolError):
        read_file.body(gone, "note.txt")


@pytest.mark.parametrize("path", ["note.txt", "./note.txt", ".//note.txt", "folder/inner.txt", "folder/./inner.txt"])
def test_files_inside_are_read_as_they_are(context: ToolContext, path: str) -> None:
    assert read_file.body(context, path) in (b"one\n", b"inner\n")


@pytest.mark.parametrize(
    ("first", "last", "lines"),
    [
        (1, 0, b"a\r\nb\n\xff\n\nend"),
        (2, 2, b"b\n"),
        (1, 3, b"a\r\nb\n\xff\n"),
        (3, 0, b"\xff\n\nend"),
        (5, 99, b"end"),
    ],
)
def test_lines_are_read_byte_for_byte(context: ToolContext, work: Path, first: int, last: int, lines: bytes) -> None:
    (work / "odd").write_bytes(b"a\r\nb\n\xff\n\nend")
    assert read_file.body(context, "odd", first, last) == lines


@given(raw=st.binary(max_size=30), cut=st.integers(1, 8))
def test_the_lines_up_to_a_number_and_those_behind_it_are_the_file(raw: bytes, cut: int, tmp_path: Path) -> None:
    work = subfolder(tmp_path)
    (work / "file").write_bytes(raw)
    parts = [read_file.body(call_in(work), "file", 1, cut)]
    with suppress(ToolError):
        parts.append(read_file.body(call_in(work), "file", cut + 1))
    assert b"".join(parts) == raw


@pytest.mark.parametrize(("first", "last"), [(0, 0), (-1, 2), (3, 2), (1, -1)])
def test_lines_that_cannot_be_are_refused(context: ToolContext, first: int, last: int) -> None:
    with pytest.raises(ToolError, match="lines count from 1"):
        read_file.body(context, "note.txt", first, last)


def test_lines_behind_the_end_are_an_error_that_says_how_many_there_are(context: ToolContext) -> None:
    with pytest.raises(ToolError, match="has 1 lines"):
        read_file.body(context, "note.txt", 2)


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
    call = call_in(work)
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
    with pytest.raises(ToolError, match="no Unicode"):
        append_line.body(context, "note.txt", "lone \ud800 half")
    assert (work / "note.txt").read_text() == "one\n"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond ten bytes: a write goes half way, then fails. Nor may the report of the tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_line_that_fits_only_in_part_is_an_error_and_not_a_success(context: ToolContext, work: Path) -> None:
    with full_disk(), pytest.raises(ToolError, match=os.strerror(errno.EFBIG)):
        append_line.body(context, "new.txt", "more than ten bytes")


def test_a_file_that_fits_only_in_part_keeps_its_old_content(context: ToolContext, work: Path) -> None:
    before = whole_tree(work)
    with full_disk(), pytest.raises(ToolError, match="it was not changed"):
        write_file.body(context, "note.txt", "more than ten bytes")
    assert whole_tree(work) == before


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
        ("write_file", {"path": "b.db", "text": "forged"}),
        ("edit_file", {"path": "b.db-head", "old": "a", "new": "b"}),
        ("list_files", {"pattern": "**"}),
        ("search_files", {"text": "SQLite format"}),
    )
    model = FakeModel([wanted])
    async with (
        opened(path, model, *files.TOOLS, workspace=work) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("hi")
        await session.run()
    results = sorted(events_of(path, ToolResult), key=lambda result: result.position)
    assert [result.outcome for result in results] == ["ok", "ok", *["error"] * 7, "ok", "ok"]
    assert results[1].text == "hello\n"
    assert "made.txt (6 bytes)" in results[9].text
    assert "b.db" not in results[9].text
    assert results[10].text == "[nothing]"
    with flightlog.open_log(path, discover=False) as log:
        assert log.session("s").verify()


@pytest.mark.parametrize(
    ("name", "kind"), [("cat.png", "image/png"), ("CAT.JPG", "image/jpeg"), ("a.pdf", "application/pdf")]
)
def test_an_image_or_a_document_is_shown_as_what_it_is(name: str, kind: str, context: ToolContext, work: Path) -> None:
    (work / "folder" / name).write_bytes(b"\x89 of a cat")
    shown = read_file.body(context, path=f"folder/{name}")
    assert shown == ToolOutput(content=(FileBlock.of(b"\x89 of a cat", name=name),))
    assert shown.content[0].media_type == kind


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "cat.png.gz", "cat.svg", "png", "empty.png"])
def test_everything_else_is_read_as_bytes(name: str, context: ToolContext, work: Path) -> None:
    data = b"" if name == "empty.png" else b"data"
    (work / name).write_bytes(data)
    assert read_file.body(context, path=name) == data


async def test_a_model_that_reads_an_image_is_given_it(work: Path, tmp_path: Path) -> None:
    (work / "cat.png").write_bytes(b"\x89PNG of a cat")
    model = FakeModel([calls(("read_file", {"path": "cat.png"}))])
    async with (
        opened(tmp_path / "a.db", model, read_file, workspace=work) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("what is in cat.png?")
        await session.run()
    assert b"\x89PNG of a cat".hex() in model.requests[1][-1].decode()
