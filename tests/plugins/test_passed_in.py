"""Plugins that the host passes in: a broken one is the host's bug, so opening raises and names it."""

from __future__ import annotations

import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trio

import flightlog
from flightlog import Limits
from flightlog.runtime import quarantine
from flightlog.testing import Attempts, Bundle, FakeModel, words
from flightlog_hookspecs import PromptSection, Tool, hookimpl
from flightlog_hookspecs.errors import PluginError, ProviderError
from flightlog_plugins import files, scripted
from flightlog_plugins.retry import Retry


def named(name: str) -> Tool:
    """A tool."""
    return Tool(body=lambda: name, name=name, description="Say a name.", effect="read")


class Raises:
    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        register(named("half"))
        raise ValueError("halfway")


class Exits:
    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        raise SystemExit(3)


class Misspelt:
    @hookimpl
    def register_toolz(self, register: Callable[[Tool], None]) -> None:
        """Never called."""


class WrongSignature:
    @hookimpl
    def register_tools(self, registre: Callable[[Tool], None]) -> None:
        """Never called."""


class Unhashable:
    __hash__ = None

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        register(named("unhashable"))


async def tools_of(path: Path, *plugins: object) -> list[str]:
    """The tools a kernel with `plugins` has."""
    async with flightlog.open_kernel(path, discover=False, plugins=plugins) as kernel:
        return sorted(kernel.registry.tools)


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (Raises(), "halfway"),
        (Exits(), "SystemExit"),
        (Misspelt(), "register_toolz"),
        (WrongSignature(), "registre"),
        (Bundle(tools=[named("a"), named("a")]), "'a' exists already"),
        (Bundle(tools=["a"]), "not a Tool"),
        (Bundle(adapters=[object()]), "not an Adapter"),
        (Bundle(sections=["a"]), "register_prompt_sections was given 'a'"),
        (Bundle(sections=[PromptSection(name="x", rank="first", render=str)]), "rank"),
        (Bundle(sections=[PromptSection(name=5, rank=1, render=str)]), "name"),
        (Bundle(sections=[PromptSection(name="x", rank=1, render="text")]), "render"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", mode="sideways")]), "mode"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", effect="maybe")]), "effect"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", isolation="cell")]), "isolation"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", timeout_s="soon")]), "timeout_s"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", timeout_s=float("nan"))]), "timeout_s"),
        (Bundle(tools=[Tool(body=named, name="x", description=5)]), "description"),
        (Bundle(tools=[Tool(body=named, name=5, description="x")]), "int"),
        (Bundle(adapters=[FakeModel([], name=5)]), "name"),
        (Bundle(adapters=[FakeModel([], name="with:colon")]), "name"),
        (Bundle(adapters=[FakeModel([], name="")]), "name"),
        (Bundle(tools=5), "int"),
        (Bundle(tools=[Tool(body=5, name="x", description="x")]), ""),
        (Bundle(tools=[Tool(body=named, name="", description="x")]), "tool name"),
        (Bundle(tools=[Tool(body=named, name="x" * 65, description="x")]), "tool name"),
        (Bundle(tools=[Tool(body=named, name="x", description="x", timeout_s=0)]), "timeout_s"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
async def test_a_broken_plugin_raises_and_leaves_no_kernel_behind(tmp_path: Path, plugin: object, says: str) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(PluginError) as caught:
        await tools_of(path, Bundle(adapters=[FakeModel([])]), plugin)
    assert says in str(caught.value)
    assert caught.value.plugin == type(plugin).__name__
    assert not path.exists(), "nothing was opened"
    assert await tools_of(path, Bundle(tools=[named("fine")])) == ["fine"]


async def test_two_plugins_that_offer_the_same_name_cannot_both_be_passed_in(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="'a' exists already"):
        await tools_of(tmp_path / "a.db", Bundle(tools=[named("a")]), Bundle(tools=[named("a")]))
    section = PromptSection(name="s", rank=1, render=str)
    with pytest.raises(PluginError, match="'s' exists already"):
        await tools_of(tmp_path / "a.db", Bundle(sections=[section]), Bundle(sections=[section]))
    with pytest.raises(PluginError, match="'fake' exists already"):
        await tools_of(tmp_path / "a.db", Bundle(adapters=[FakeModel([])]), Bundle(adapters=[FakeModel([])]))


async def test_modules_objects_and_unhashable_objects_are_plugins(tmp_path: Path) -> None:
    module = types.ModuleType("made_up")
    module.register_tools = hookimpl(lambda register: register(named("from_module")))
    assert await tools_of(tmp_path / "a.db", files, module, Unhashable()) == sorted(
        [*(tool.name for tool in files.TOOLS), "from_module", "unhashable"]
    )


async def test_a_plugin_passed_in_is_not_discovered_a_second_time(tmp_path: Path) -> None:
    async with flightlog.open_kernel(tmp_path / "a.db", plugins=[files, scripted]) as kernel:
        assert kernel.registry.problems == []
        names = [version.name for version in kernel.registry.versions]
        assert len(names) == len(set(names))
        assert names.count("flightlog_plugins.files") == 1
        assert set(kernel.registry.tools) >= {tool.name for tool in files.TOOLS}


@pytest.mark.parametrize("plugin", [object(), types.ModuleType("empty")], ids=["object", "module"])
async def test_a_plugin_without_hooks_is_a_mistake_and_says_so(tmp_path: Path, plugin: object) -> None:
    with pytest.raises(PluginError, match="has no hooks"):
        await tools_of(tmp_path / "a.db", plugin)


async def test_one_made_with_options_takes_the_place_of_the_discovered_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Else the discovered one would retry where this one has had enough."""
    entry = EntryPoint("retry", "flightlog_plugins.retry:Retry", "flightlog")
    monkeypatch.setattr(quarantine, "entry_points", lambda group: [entry])
    for plugins, wish_s in (([], 20.0), ([Retry(max_wait_s=19.0)], None)):
        model = FakeModel([Attempts(([ProviderError("rate_limit", "busy", retry_after_s=20.0)], words("Ok.")))])
        async with (
            flightlog.open_kernel(tmp_path / f"{wish_s}.db", plugins=[Bundle(adapters=[model]), *plugins]) as kernel,
            kernel.session("s", model="fake:m", limits=Limits(attempts_per_step=2)) as session,
        ):
            assert len(kernel.registry.versions) == 2
            await session.followup("go")
            assert (await session.run()).reason == ("completed" if wish_s else "error")


async def test_two_kernels_share_nothing(tmp_path: Path) -> None:
    async with (
        flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[Bundle(tools=[named("one")])]) as one,
        flightlog.open_kernel(tmp_path / "b.db", discover=False, plugins=[Bundle(tools=[named("two")])]) as two,
    ):
        assert list(one.registry.tools) == ["one"]
        assert list(two.registry.tools) == ["two"]


async def test_a_bare_object_with_hooks_runs_a_turn(tmp_path: Path) -> None:
    class Host:
        __version__ = "7"

        @hookimpl
        def register_adapters(self, register: Callable[[object], None]) -> None:
            register(FakeModel([words("hi")]))

    async with (
        flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[Host()]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("hello")
        turn = await session.run()
        assert turn.text == "hi"
        await trio.lowlevel.checkpoint()
        assert [(v.name, v.version) for v in kernel.registry.versions] == [("Host", "7")]
