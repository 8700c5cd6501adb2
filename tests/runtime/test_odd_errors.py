"""Errors that cannot say what they are, and options of the wrong kind, cost what they must and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import flightlog
from flightlog.errors import PluginError, ProviderError, ToolError, UsageError
from flightlog.events import RequestFailed, ToolResult
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Hook, TextBlock, Tool, ToolCallBlock
from support import worker_tools
from support.kernels import events_of, opened, session_of


class Mute(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("I cannot say")


class Bare(ProviderError):
    def __init__(self) -> None:  # never calls its base
        Exception.__init__(self, "bare")


def mute() -> str:
    """Fail without words."""
    raise Mute


async def test_a_tool_error_that_cannot_be_shown_is_one_error_result(tmp_path: Path) -> None:
    tools = [
        Tool(body=mute, effect="write"),
        Tool(body=worker_tools.mute, name="far", effect="write", isolation="process"),
    ]
    model = FakeModel([calls(("mute", {}), ("far", {})), words("Fine.")])
    async with session_of(tmp_path / "a.db", model, *tools) as session:
        await session.followup("go")
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    assert [result.outcome for result in events_of(tmp_path / "a.db", ToolResult)] == ["error", "error"]


async def test_a_provider_error_without_its_fields_is_a_failed_attempt(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([[Bare()]])) as session:
        await session.followup("go")
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, turn.code) == ("error", "adapter")
    assert [failed.failure for failed in events_of(tmp_path / "a.db", RequestFailed)] == ["adapter"]


async def test_a_process_tool_that_forks_answers_when_it_is_done_and_not_when_its_child_is(tmp_path: Path) -> None:
    forks = Tool(body=worker_tools.forks, description="Fork.", effect="write", isolation="process", timeout_s=60.0)
    async with session_of(tmp_path / "a.db", FakeModel([calls(("forks", {})), words("Fine.")]), forks) as session:
        await session.followup("go")
        with trio.fail_after(60):
            await session.run()
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert (result.outcome, result.text) == ("ok", "answered")


@pytest.mark.parametrize(
    "options",
    [{"system": 5}, {"title": b"x"}, {"limits": {"parallel_tools": 1}}, {"expect": "token"}],
    ids=lambda options: next(iter(options)),
)
async def test_a_session_option_of_the_wrong_kind_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError, match=next(iter(options))):
            async with kernel.session("s", model="fake:m", **options):
                pass
        with pytest.raises(UsageError, match="no session"):
            kernel.read("s")


@pytest.mark.parametrize("path", [None, 5, object()], ids=lambda path: type(path).__name__)
async def test_a_path_that_is_none_is_a_usage_error(path: Any) -> None:
    with pytest.raises(UsageError, match="must be a path"):
        async with flightlog.open_kernel(path):
            pass


@pytest.mark.parametrize("block", [ToolCallBlock(call_id="c", name="x", arguments="{}"), "text", 5])
async def test_only_texts_and_files_can_be_sent(tmp_path: Path, block: Any) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        with pytest.raises(UsageError, match="texts and files"):
            await session.followup((TextBlock(text="fine"), block))
        assert session.pending == 0


@pytest.mark.parametrize("plugin", ["my_package", 5, Tool(body=mute)], ids=lambda plugin: type(plugin).__name__)
async def test_a_plugin_without_hooks_is_a_mistake_that_is_named(tmp_path: Path, plugin: object) -> None:
    with pytest.raises(PluginError, match="has no hooks"):
        async with flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[plugin]):
            pass


def takes_two(one: object, two: object) -> None: ...


@pytest.mark.parametrize(
    "hook",
    [
        Hook(point="before_tool", body=5, name="x"),  # type: ignore[arg-type]
        Hook(point="before_tool", body=takes_two, name="x"),  # type: ignore[arg-type]
        Hook(point="before_tool", body=lambda call: None, name=7),  # type: ignore[arg-type]
    ],
    ids=["not callable", "two arguments", "no name"],
)
async def test_a_hook_that_could_never_be_asked_is_refused_at_registration(tmp_path: Path, hook: Hook) -> None:
    with pytest.raises(PluginError, match="hook"):
        async with flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[Bundle(hooks=[hook])]):
            pass


async def test_a_copy_to_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
        with pytest.raises(UsageError, match="folder does not exist"):
            await kernel.backup(tmp_path / "nowhere" / "b.db")
        with pytest.raises(UsageError, match="folder does not exist"):
            kernel.read("s").export(tmp_path / "nowhere" / "s.jsonl")


async def test_a_proof_with_an_adapter_that_has_broken_since_names_the_adapter(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("Fine.")])) as session:
        await session.followup("go")
        await session.run()

    class Broken(FakeModel):
        def encode(self, part: object) -> bytes:
            raise ZeroDivisionError

    with flightlog.open_log(tmp_path / "a.db", discover=False, plugins=[Bundle(adapters=[Broken([])])]) as log:
        with pytest.raises(PluginError, match="'fake', encode: ZeroDivisionError"):
            log.session("s").verify()
        with pytest.raises(PluginError, match="encode"):
            log.session("s").request(1, 1)
