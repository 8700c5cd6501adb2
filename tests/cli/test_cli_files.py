"""`--attach`: files go with a message, are shown by what they are, and never by their bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import flightlog

if TYPE_CHECKING:
    from flightlog_process import Shell

PNG = b"\x89PNG\r\n\x1a\n of a cat"
SHOWN = "[image cat.png, image/png, 17 bytes]"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "cat.png").write_bytes(PNG)
    (shell.folder / "a.txt").write_text("some words")
    return shell


def test_a_message_takes_files_along_and_every_view_of_it_names_them(shell: Shell) -> None:
    done = shell.call("run", "what is this?", "--session", "s", "--attach", "cat.png", "--attach", "a.txt")
    assert done.out.startswith("what is this?\n")
    named = f"{SHOWN} [file a.txt, text/plain, 10 bytes] what is this?"
    assert f"accepted, enters next_turn: {named}" in shell.call("show", "s").out
    assert named in shell.call("tail", "s", "-n", "50").out
    assert SHOWN in shell.call("show", "s", "--request", "1.1").out.splitlines()
    assert "proven: encoded again" in shell.call("show", "s", "--request", "1.1").out
    shell.call("verify")
    with flightlog.open_log(shell.db, discover=False) as log:
        (file, _, _) = log.session("s").messages()[0].content
        assert log.session("s").data_of(file) == PNG  # type: ignore[arg-type]


def test_json_says_what_a_file_is_and_has_none_of_its_bytes(shell: Shell) -> None:
    shell.call("run", "what is this?", "--session", "s", "--attach", "cat.png")
    lines = shell.call("show", "s", "--json").json_lines
    (entered,) = [line["data"]["content"] for line in lines if line["kind"] == "user/message"]
    assert entered[0].keys() == {"type", "media_type", "sha256", "size_bytes", "name"}
    assert (entered[0]["type"], entered[0]["name"]) == ("file", "cat.png")
    request = shell.call("show", "s", "--request", "1.1", "--json").out
    assert json.loads(request)["messages"][0]["content"][0] == entered[0]


def test_what_is_sent_to_a_mailbox_takes_files_along(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "s")
    shell.call("send", "s", "see", "--attach", "cat.png")
    assert "see" in shell.call("resume", "s").out
    assert f"{SHOWN} see" in shell.call("show", "s").out
    shell.call("verify")


def test_a_file_that_a_tool_shows_is_named_beside_its_call(shell: Shell) -> None:
    from flightlog.cli.timeline import described
    from flightlog_hookspecs import FileBlock
    from flightlog_hookspecs.events import ToolResult

    content = (FileBlock.of(PNG, name="cat\x1b.png", media_type="image/png"),)
    result = ToolResult(position=0, call_id="c", name="look", message_seq=1, outcome="ok", content=content)
    assert described(result) == "ok: [image cat\u241b.png, image/png, 17 bytes]"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("empty.png", b"", "has no bytes"),
        ("unknown", b"x", "does not say what is in the file"),
        ("large.png", bytes(20 * 1024 * 1024 + 1), "larger than the 20971520 bytes"),
        ("missing.png", None, "does not exist"),
    ],
)
@pytest.mark.parametrize("command", ["run", "send"])
def test_a_file_that_cannot_go_along_is_refused_before_anything_is_written(
    command: str, name: str, data: bytes | None, why: str, shell: Shell
) -> None:
    shell.call("run", "hello", "--session", "s")
    if data is not None:
        (shell.folder / name).write_bytes(data)
    before = shell.files()
    given = ("s", "see") if command == "send" else ("see", "--session", "t")
    assert why in shell.call(command, *given, "--attach", name, code=2).err
    assert shell.files() == before
