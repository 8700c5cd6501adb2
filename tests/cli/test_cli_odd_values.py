"""Odd names, paths and numbers: whatever a command line may hold, no error is Python's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import pytest
from test_cli_surroundings import every_command

from flightlog.cli.app import flightlog as group
from flightlog.cli.terminal_text import arguments

if TYPE_CHECKING:
    from flightlog_process import Shell

ODD = "j\udcff"
"""What Python makes of an argument that is not UTF-8."""
WORDS = {"session": "s", "sessions": "s", "name": "t", "task": "t", "turn": "1", "new": "n", "sql": "SELECT 1"} | {
    "cards": "tokens=5",
    "seq": "1",
    "kind": "tool",
    "verdict": "allow",
    "text": "hello",
    "goal": "count",
    "dest": "copy.db",
    "file": "-",
}
NEEDED = {("task", "fork"): ("--checkpoint", "1"), ("timer", "set"): ("--after", "1s")}
LONG = {("demo",), ("fuzz",), ("plugins", "new"), ("work",)}
"""Commands that do more than to look at a log; those with odd values of their own are below."""
ALL = [(names, command) for names, command in every_command(group) if not isinstance(command, click.Group)]


def called_with(value: str, wanted: type, names: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    """The command, with that value for each of its parameters of the type `wanted` in turn."""
    for odd in command.params:
        if not isinstance(odd.type, wanted) or (isinstance(odd, click.Option) and odd.is_flag):
            continue
        words = [
            value if parameter is odd else WORDS[str(parameter.name)]
            for parameter in command.params
            if isinstance(parameter, click.Argument) and (parameter.required or parameter is odd or odd.name == "seq")
        ]
        before = (*names, *NEEDED.get(names, ()))
        yield (*before, "--", *words) if isinstance(odd, click.Argument) else (*before, odd.opts[0], value, *words)


def is_ours(complaint: str) -> bool:
    return not re.match(r"flightlog: \w+(Error|Exception|Exit|Interrupt): ", complaint)


TEXTS = [
    call
    for names, command in ALL
    if names not in LONG
    for call in called_with(ODD, click.types.StringParamType, names, command)
]
NUMBERS = [
    call
    for names, command in ALL
    for value in ("nan", "inf", "-1", "1e999", "1" * 30, "9" * 5000)
    for call in called_with(value, click.IntRange | click.FloatRange, names, command)  # type: ignore[arg-type]
]


@pytest.mark.parametrize("words", TEXTS, ids=lambda words: ascii(" ".join(words)))
def test_text_that_is_not_unicode_is_no_error_of_python(shell: Shell, words: tuple[str, ...]) -> None:
    shell.call("run", "hello", "--session", "s")
    shell.call("task", "submit", "count", "--id", "t")
    done = shell.call(*words, code=None)
    assert is_ours(done.err)
    assert done.code == 0 or done.complaint
    assert "SQL" not in done.err or words[0] == "query"


@pytest.mark.parametrize("words", NUMBERS, ids=lambda words: " ".join(words)[:60])
def test_a_number_out_of_range_is_refused_at_once(shell: Shell, words: tuple[str, ...]) -> None:
    assert "Invalid value for" in shell.call(*words, code=2).complaint
    assert not shell.db.exists()


LARGEST = [
    call
    for names, command in ALL
    if names not in LONG
    for call in called_with(str(2**63 - 1), click.IntRange, names, command)
]


@pytest.mark.parametrize("words", LARGEST, ids=" ".join)
def test_the_largest_number_is_no_error_of_python(shell: Shell, words: tuple[str, ...]) -> None:
    shell.call("run", "hello", "--session", "s")
    shell.call("task", "submit", "count", "--id", "t")
    assert is_ours(shell.call(*words, code=None).err)


WITH_DB = [
    call for names, command in ALL for call in called_with(f"{ODD}.db", click.Path, names, command) if "--db" in call
]


@pytest.mark.parametrize("words", WITH_DB, ids=lambda words: ascii(" ".join(words)))
def test_a_log_whose_name_is_not_utf_8_is_refused_and_none_is_made(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.call(*words, code=2)
    assert "--db: " in done.complaint
    assert "is not UTF-8" in done.complaint
    assert not [*shell.folder.iterdir()]


def test_a_log_whose_name_is_not_utf_8_is_refused_also_where_it_stands(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "s")
    odd = shell.folder / f"{ODD}.db"
    odd.write_bytes(shell.db.read_bytes())
    for words in (("sessions",), ("verify",), ("purge", "s", "--yes"), ("repair",), ("backup", "copy.db")):
        assert "is not UTF-8" in shell.call(*words, "--db", str(odd), code=2).complaint
    assert "is not UTF-8" in shell.call("backup", f"{ODD}.copy", code=2).complaint
    assert shell.call("export", "s", f"{ODD}.jsonl").code == 0
    assert "already" in shell.call("import", f"{ODD}.jsonl", code=2).complaint


@pytest.mark.parametrize("open_bracket", ["[", '{"a":'])
def test_a_parameter_that_is_nested_too_deeply_is_refused(shell: Shell, open_bracket: str) -> None:
    value = open_bracket * 5000
    said = shell.call("task", "submit", "count", "--parameter", f"a={value}", code=2).complaint
    assert said == "flightlog: --parameter a is nested too deeply"


def test_arguments_of_a_call_that_are_nested_too_deeply_are_shown_as_they_are() -> None:
    assert arguments("[" * 5000).startswith("[[[")


@pytest.mark.parametrize("kept", ["{", "[]", "{}", "7", "[" * 5000])
def test_a_state_that_no_hunt_wrote_is_refused_before_it_begins(shell: Shell, kept: str) -> None:
    (shell.folder / "state").write_text(kept)
    assert "is not what a hunt notes" in shell.call("fuzz", "--rounds", "1", "--state", "state", code=2).complaint


@pytest.mark.parametrize("kept", ["{", "[]", "{}", "7", "[" * 5000])
def test_a_kept_file_that_is_none_is_refused(shell: Shell, kept: str) -> None:
    (shell.folder / "kept").write_text(kept)
    assert "is not what `flightlog fuzz --save` writes" in shell.call("fuzz", "--replay", "kept", code=2).complaint


@pytest.mark.parametrize("word", ["--budget", "--rate"])
def test_a_number_in_a_word_is_bounded_too(shell: Shell, word: str) -> None:
    words = {
        "--budget": ("task", "submit", "x", word, f"tokens={'9' * 5000}"),
        "--rate": ("work", word, f"tool:a={'9' * 5000}/1m"),
    }
    assert "digits" in shell.call(*words[word], code=2).complaint


def test_an_import_from_a_closed_stdin_says_so(shell: Shell) -> None:
    program = (
        "import os, subprocess, sys\n"
        f"done = subprocess.run({[sys.executable, '-m', 'flightlog', 'import', '-']!r},"
        " preexec_fn=lambda: os.close(0), close_fds=False)\n"
        "sys.exit(done.returncode)"
    )
    assert "stdin is closed" in shell.python("-c", program, code=2).complaint


@pytest.mark.parametrize("text", ["", "  ", "\n"])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "--session", "s"),
        ("resume", "s"),
        ("send", "s"),
        ("send", "s", "--as", "inject"),
        ("timer", "set", "s", "--after", "1s"),
        ("task", "steer", "t"),
        ("task", "submit"),
        ("task", "amend", "t", "--goal"),
    ],
    ids=" ".join,
)
def test_a_message_without_words_is_refused_before_it_costs_a_turn(
    shell: Shell, command: tuple[str, ...], text: str
) -> None:
    shell.call("run", "hello", "--session", "s")
    shell.call("task", "submit", "count", "--id", "t")
    before = shell.kinds("s"), shell.kinds("t")
    assert re.search(
        "needs words or a file|a goal is a text that says something", shell.call(*command, text, code=2).complaint
    )
    assert (shell.kinds("s"), shell.kinds("t")) == before
    assert shell.call("query", "SELECT count(*) FROM letters", "--json").json["rows"] == [[0]]


def test_a_file_needs_no_words(shell: Shell) -> None:
    (shell.folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    shell.call("run", "", "--attach", "a.png", "--session", "s")
    assert [
        row["data"]["content"] for row in shell.call("show", "s", "--json").json_lines if row["kind"] == "user/message"
    ]
