"""Identity, rules and workspace: what the model is told of them, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import flightlog
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import PluginFault, RequestHeader, UserMessage
from flightlog_plugins import sections
from flightlog_plugins.sections import Identity, Rules, Workspace
from support.kernels import events_of, verified
from support.workspaces import work

__all__ = ["work"]


async def told(path: Path, model: FakeModel, *plugins: object, turns: int = 1) -> list[str]:
    """The context messages of some turns."""
    everything = [Bundle(adapters=[model]), *plugins]
    async with (
        flightlog.open_kernel(path, discover=False, plugins=everything) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        for _ in range(turns):
            await session.followup("hi")
            await session.run()
    assert verified(path, model)
    return [message.text for message in events_of(path, UserMessage) if message.source == "context"]


async def test_identity_and_rules_are_the_system_text_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Test first.\n")
    plugins = [Rules(path=tmp_path / "AGENTS.md"), Identity("You are Ada.")]
    assert await told(tmp_path / "a.db", FakeModel([]), *plugins) == []
    (header,) = events_of(tmp_path / "a.db", RequestHeader)
    assert header.head.system == "You are Ada.\n\nTest first."


async def test_rules_that_change_or_go_while_a_session_lasts_are_told_once(tmp_path: Path) -> None:
    rules = tmp_path / "AGENTS.md"
    rules.write_text("one")
    between = [lambda: rules.write_text("two"), lambda: None, rules.unlink]

    def change() -> str:
        between.pop(0)()
        return "done"

    tool = Tool(body=change, name="change", description="Change the rules.", effect="read")
    model = FakeModel([reply for _ in range(3) for reply in (calls(("change", {})), words("."))])
    texts = await told(tmp_path / "a.db", model, Bundle(tools=[tool]), Rules(path=rules), turns=4)
    assert [text.splitlines()[-1] for text in texts[:1]] == ["two"]
    assert texts[1:] == ["The context 'rules' no longer applies."]


@pytest.mark.parametrize("way", ["folder", "pipe", "closed"])
async def test_rules_that_cannot_be_read_are_a_plugin_error_and_the_turn_goes_on(tmp_path: Path, way: str) -> None:
    rules = tmp_path / "AGENTS.md"
    match way:
        case "folder":
            rules.mkdir()
        case "pipe":
            os.mkfifo(rules)
        case "closed":
            rules.symlink_to(rules)
    await told(tmp_path / "a.db", FakeModel([]), Rules(path=rules))
    (fault,) = events_of(tmp_path / "a.db", PluginFault)
    assert fault.hook == "render rules"


@pytest.mark.parametrize("raw", [b"x" * 1_000_000, "\u4e2d".encode() * 100_000, b"\xff" * 200_000])
def test_long_rules_are_cut_and_say_so(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "AGENTS.md").write_bytes(raw)
    text = Rules(path=tmp_path / "AGENTS.md").render()
    assert text.endswith("characters of the rules are given here]")
    assert sections.RULES_MAX_CHARS < len(text) < sections.RULES_MAX_CHARS + 100
    assert len(Rules(text="y" * 100_000).render()) < sections.RULES_MAX_CHARS + 100


def test_rules_that_are_no_text_do_not_break_the_request(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"be \xff kind\0")
    Rules(path=tmp_path / "AGENTS.md").render().encode()


@pytest.mark.parametrize("options", [{}, {"text": "a", "path": "b"}, {"text": 7}, {"path": 7}])
def test_rules_are_either_a_text_or_a_file(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Rules(**options)


def test_the_workspace_is_two_levels_of_names_and_follows_no_link(work: Path) -> None:
    (work / "folder/deep").mkdir()
    (work / "folder/deep/deeper.txt").touch()
    for name in (".git", "a.db", "a.db-wal", "new\nline"):
        (work / name).touch()
    assert Workspace(work).render().splitlines()[1:] == [
        "a.db",
        "dangling.txt",
        "fifo",
        "folder/",
        "folder/deep/",
        "folder/inner.txt",
        "inner link.txt",
        "link",
        "link.txt",
        "loop",
        "new\\nline",
        "note.txt",
    ]


async def test_the_workspace_is_told_when_a_name_has_come_or_gone_and_not_when_a_file_has_changed(
    tmp_path: Path, work: Path
) -> None:
    steps = [
        lambda: (work / "note.txt").write_text("changed"),
        (work / "new.txt").touch,
        lambda: None,
        (work / "new.txt").unlink,
    ]

    def change() -> str:
        steps.pop(0)()
        return "done"

    tool = Tool(body=change, name="change", description="Change the workspace.", effect="read")
    model = FakeModel([calls(("change", {}))] * 4)
    texts = await told(tmp_path / "a.db", model, Bundle(tools=[tool]), Workspace(work))
    assert ["new.txt" in text for text in texts] == [False, True, False]


def test_a_large_or_missing_workspace_is_no_trouble(tmp_path: Path) -> None:
    assert Workspace(tmp_path / "gone").render() == ""
    for number in range(sections.ENTRIES_MAX + 50):
        (tmp_path / f"{number:04}").touch()
    lines = Workspace(tmp_path).render().splitlines()
    assert len(lines) == sections.ENTRIES_MAX + 2
    assert lines[-1] == "[and more]"
