"""Listing and searching the workspace: bounded, in order, following no link."""

from __future__ import annotations

import glob
import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs import ToolContext
from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files import list_files, listing, search_files, searching, walking
from support.memory_folder import subfolder
from support.workspaces import call_in, context, work

__all__ = ["context", "work"]


@pytest.fixture
def tree(tmp_path: Path) -> ToolContext:
    """A call in a workspace with files at several depths."""
    work = tmp_path / "tree"
    for path in ("a.py", "b.txt", "src/a.py", "src/deep/er/c.py", ".git/config", "src/.hidden.py", "src/deep/x[1].py"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(f"text of {path}\n")
    return call_in(work)


def listed(context: ToolContext, *arguments: str) -> list[str]:
    """The paths of a listing."""
    return [line.split(" ")[0] for line in list_files.body(context, *arguments).splitlines()]


@pytest.mark.parametrize(
    ("path", "pattern", "found"),
    [
        (".", "*", ["a.py", "b.txt", "src/"]),
        (".", ".*", [".git/"]),
        (".", "**/*.py", ["a.py", "src/a.py", "src/deep/er/c.py", "src/deep/x[1].py"]),
        (".", "*.py", ["a.py"]),
        (".", "*/*.py", ["src/a.py"]),
        ("src", "**", ["src/a.py", "src/deep/", "src/deep/er/", "src/deep/er/c.py", "src/deep/x[1].py"]),
        (".", "src/**/er/*", ["src/deep/er/c.py"]),
        (".", "**/.*", [".git/", "src/.hidden.py"]),
        (".", ".git/*", [".git/config"]),
        (".", "?.[pt][yx]*", ["a.py", "b.txt"]),
        (".", "src/deep/x[[]1].py", ["src/deep/x[1].py"]),
        (".", "A.PY", ["[nothing]"]),
        (".", "**/**/**/**/c.py", ["src/deep/er/c.py"]),
    ],
)
def test_patterns_work_as_in_a_shell(tree: ToolContext, path: str, pattern: str, found: list[str]) -> None:
    assert listed(tree, path, pattern) == found


def test_what_is_no_file_is_named_and_not_entered(context: ToolContext) -> None:
    lines = list_files.body(context, pattern="**").splitlines()
    assert "link (a link; not followed)" in lines
    assert "fifo (not a file)" in lines
    assert not any("secret" in line for line in lines)


@pytest.mark.parametrize("pattern", ["", "/", "../*", "/etc/*", "a/../..", "nul\0", "x" * 1000])
def test_patterns_that_lead_out_are_refused(context: ToolContext, pattern: str) -> None:
    with pytest.raises(ToolError, match="not a pattern"):
        list_files.body(context, ".", pattern)
    with pytest.raises(ToolError, match="not a pattern"):
        search_files.body(context, "one", ".", pattern)


def test_a_run_of_any_folders_is_one() -> None:
    assert walking.pattern_of("a/" + "**/" * 100 + "b/**/**") == ("a", "**", "b", "**")
    assert walking.pattern_of("a/a/*/*") == ("a", "a", "*", "*")


@pytest.mark.parametrize("path", ["..", "/etc", "link", "loop", "note.txt", "missing", "folder/../.."])
def test_only_folders_inside_are_listed_and_searched(context: ToolContext, path: str) -> None:
    with pytest.raises(ToolError):
        list_files.body(context, path)
    with pytest.raises(ToolError):
        search_files.body(context, "one", path)


def test_names_that_steer_a_terminal_or_are_no_text_stand_escaped_on_one_line(tmp_path: Path) -> None:
    for name in (b"two\nlines", b"\x1b[2J", b"\xff.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("here\n")
    assert len(list_files.body(call_in(tmp_path)).splitlines()) == 3
    found = search_files.body(call_in(tmp_path), "here")
    assert len(found.splitlines()) == 3
    assert "\x1b" not in found
    found.encode()


def test_long_listings_and_endless_trees_are_cut_and_say_so(tree: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED_MAX", 2)
    assert "only the first 2" in list_files.body(tree).splitlines()[-1]
    monkeypatch.setattr(listing, "LISTED_MAX", 100)
    monkeypatch.setattr(listing, "Walk", partial(walking.Walk, depth=2))
    assert "not everything" in list_files.body(tree, ".", "**").splitlines()[-1]


def test_a_walk_looks_at_so_many_entries_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").touch()
    walk = walking.Walk(walking.Guarded.by(call_in(tmp_path)), ("*",))
    walk._left = 10
    fd = os.open(tmp_path, os.O_RDONLY)
    assert len(list(walk.below(fd, ""))) == 10
    assert not walk.complete
    os.close(fd)


def test_a_search_names_each_line_and_passes_over_what_is_no_text(tree: ToolContext) -> None:
    work = Path(tree.workspace)
    (work / "crlf.txt").write_bytes(b"no\r\nText of crlf\r\n")
    (work / "latin.txt").write_bytes(b"\xe9t\xe9: text of latin\n")
    (work / "binary").write_bytes(b"text of\0")
    assert search_files.body(tree, "text of", pattern="*").splitlines() == [
        "a.py:1:text of a.py",
        "b.txt:1:text of b.txt",
        "latin.txt:1:\ufffdt\ufffd: text of latin",
        "[1 binary files were not searched]",
    ]
    assert "crlf.txt:2:Text of crlf\n" in search_files.body(tree, "TEXT OF", ignore_case=True)


def test_a_search_is_bounded_in_matches_bytes_and_line_length(
    tree: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Path(tree.workspace)
    (work / "many").write_text("needle\n" * 300)
    assert len(search_files.body(tree, "needle").splitlines()) == searching.MATCHES_MAX + 1
    (work / "many").write_text("x" * 5000 + "needle" + "y" * 5000)
    line = search_files.body(tree, "needle")
    assert "needle" in line
    assert len(line) < 2 * searching.LINE_MAX_CHARS
    monkeypatch.setattr(searching, "READ_MAX_BYTES", 5)
    assert "cannot be read were not searched" in search_files.body(tree, "needle")


@pytest.mark.parametrize("text", ["", "two\nlines", "\r"])
def test_a_text_that_stands_on_no_line_is_refused(tree: ToolContext, text: str) -> None:
    with pytest.raises(ToolError, match="part of one line"):
        search_files.body(tree, text)


def test_a_file_that_becomes_a_link_after_it_was_met_is_not_read(
    tmp_path: Path, tree: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("text of secret\n")
    real = searching.opened_in

    def swapped(folder: int, name: str, path: str, flags: int) -> object:
        os.unlink(name, dir_fd=folder)
        os.link(secret, name, dst_dir_fd=folder) if name == "b.txt" else os.symlink(secret, name, dir_fd=folder)
        return real(folder, name, path, flags)

    monkeypatch.setattr(searching, "opened_in", swapped)
    assert "text of" not in search_files.body(tree, "text of", pattern="*")


names = st.sampled_from(["a", "b", ".c", "d.py"])


@given(
    paths=st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), max_size=6),
    pattern=st.lists(st.sampled_from(["*", "**", "a", ".*", "*.py"]), min_size=1, max_size=3).map("/".join),
)
def test_what_a_pattern_meets_is_what_the_library_of_the_language_meets(
    paths: set[str], pattern: str, tmp_path: Path
) -> None:
    work = subfolder(tmp_path)
    for path in paths:
        (work / path).mkdir(parents=True, exist_ok=True)
    ours = {line.rstrip("/") for line in list_files.body(call_in(work), ".", pattern).splitlines()} - {"[nothing]"}
    theirs = {path.rstrip("/") for path in glob.glob(pattern, root_dir=work, recursive=True)} - {""}
    theirs = {path for path in theirs if (work / path).exists()}  # glob yields "a/" for "a/**" without looking
    assert ours == theirs
