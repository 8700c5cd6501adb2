"""The registry: what plugins offer, and the quarantine for those that are broken.

pluggy carries registration only. Each plugin enters on its own and all or nothing: one that fails
is listed with its error, everything else works.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import get_args

import pluggy
from attrs import define, field, frozen

from flightlog.core.context import HOST_SECTION
from flightlog.core.tool_schema import PreparedTool, prepare
from flightlog.runtime.error_groups import described
from flightlog.runtime.guards import Guard
from flightlog.runtime.prompting import Section
from flightlog_hookspecs import specs
from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.errors import PluginError, UsageError
from flightlog_hookspecs.events import Head, Message, PluginVersion
from flightlog_hookspecs.hooks import Hook
from flightlog_hookspecs.markers import PROJECT
from flightlog_hookspecs.prompt import PromptSection, SectionKind
from flightlog_hookspecs.tools import Tool


@frozen(kw_only=True)
class PluginProblem:
    """A plugin that was left out, and why."""

    name: str
    error: str


@define
class Registry:
    """Everything registered, by name. The loop asks it and knows no capability itself."""

    tools: dict[str, PreparedTool] = field(factory=dict)
    adapters: dict[str, Adapter] = field(factory=dict)
    sections: dict[str, Section] = field(factory=dict)
    guards: list[Guard] = field(factory=list)
    versions: list[PluginVersion] = field(factory=list)
    problems: list[PluginProblem] = field(factory=list)

    def adapter_of(self, model: str) -> tuple[Adapter, str]:
        """The adapter of "adapter:model" and the model's own name. Raises `UsageError`."""
        name, colon, rest = model.partition(":") if isinstance(model, str) else ("", "", "")
        if not colon or not rest:
            raise UsageError(f"model {model!r} is not of the form 'adapter:model', for example 'scripted:echo'")
        adapter = self.adapters.get(name)
        if adapter is None:
            known = ", ".join(sorted(self.adapters)) or "none"
            broken = "".join(f" Plugin {problem.name!r} was left out: {problem.error}" for problem in self.problems)
            raise UsageError(f"no adapter named {name!r} (known: {known}). Install or pass its plugin.{broken}")
        return adapter, rest

    def head(self, model: str, system: str) -> Head:
        """The head that a request with this system text would have now."""
        adapter, name = self.adapter_of(model)
        tools = tuple(self.tools[tool].spec for tool in sorted(self.tools))
        return Head(adapter=adapter.name, model=name, system=system, tools=tools)


def encoder(adapter: Adapter) -> Callable[[Head | Message], bytes]:
    """`adapter.encode`, whatever is wrong with it being a `PluginError`."""

    def encode(part: Head | Message) -> bytes:
        try:
            fragment = adapter.encode(part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(adapter.name, "encode", described(error)) from error
        if type(fragment) is not bytes:
            raise PluginError(adapter.name, "encode", f"returned {type(fragment).__name__}, not bytes")
        return fragment

    return encode


def load_plugins(*, discover: bool, plugins: Sequence[object]) -> Registry:
    """A registry filled from `plugins` and, with `discover`, from installed entry points.

    A discovered plugin that fails is quarantined; one that was passed in raises `PluginError`.
    """
    registry = Registry()
    for plugin in plugins:
        name = getattr(plugin, "__name__", type(plugin).__name__)
        version = str(getattr(plugin, "__version__", ""))
        try:
            _enter(registry, plugin, PluginVersion(name=name, version=version))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(name, "registration", described(error)) from error
    if discover:
        _discover(registry)
    return registry


def _discover(registry: Registry) -> None:
    from importlib.metadata import entry_points

    given = {version.name for version in registry.versions}
    for entry in sorted(entry_points(group=PROJECT), key=lambda entry: entry.name):
        if entry.value in given:
            continue
        try:
            plugin = entry.load()
            version = PluginVersion(name=entry.name, version=entry.dist.version if entry.dist else "")
            _enter(registry, plugin() if inspect.isclass(plugin) else plugin, version)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Whatever an import or a hook does, it costs that plugin only.
            registry.problems.append(PluginProblem(name=entry.name, error=described(error)))


def _enter(registry: Registry, plugin: object, version: PluginVersion) -> None:
    """Register `plugin` completely or not at all."""
    # A manager of its own: pluggy's callers stop at the first raise, which must cost one plugin only.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    manager.register(plugin, version.name)
    _expect(bool(manager.get_hookcallers(plugin)), f"{plugin!r:.200} has no hooks: is @hookimpl missing?")
    manager.check_pending()  # finds a misspelt hook, which would otherwise never be called
    tools: dict[str, PreparedTool] = {}
    adapters: dict[str, Adapter] = {}
    sections: dict[str, Section] = {}

    def take_tool(tool: Tool) -> None:
        _expect(isinstance(tool, Tool), f"register_tools was given {tool!r}, not a Tool")
        _expect(tool.name not in registry.tools and tool.name not in tools, f"tool {tool.name!r} exists already")
        tools[tool.name] = prepare(tool, version.name, version.version)

    def take_adapter(adapter: Adapter) -> None:
        _expect(isinstance(adapter, Adapter), f"register_adapters was given {adapter!r}, not an Adapter")
        _expect(
            isinstance(adapter.name, str) and adapter.name != "" and ":" not in adapter.name,
            f"adapter name {adapter.name!r} must be a string without a colon: models are named 'adapter:model'",
        )
        _expect(
            adapter.name not in registry.adapters and adapter.name not in adapters,
            f"adapter {adapter.name!r} exists already",
        )
        adapters[adapter.name] = adapter

    def take_section(section: PromptSection) -> None:
        _expect(isinstance(section, PromptSection), f"register_prompt_sections was given {section!r}")
        _expect(
            isinstance(section.name, str) and isinstance(section.rank, int) and callable(section.render),
            f"prompt section {section!r}: name must be a string, rank a number, render a function",
        )
        _expect(
            section.kind in get_args(SectionKind) and section.limit_s > 0,
            f"prompt section {section.name!r}: no such kind, or no time limit",
        )
        _expect(section.name not in ("", HOST_SECTION), f"prompt section {section.name!r}: this name is the host's")
        _expect(
            section.name not in registry.sections and section.name not in sections,
            f"prompt section {section.name!r} exists already",
        )
        sections[section.name] = Section(section=section, plugin=version.name)

    guards: list[Guard] = []

    def take_hook(hook: Hook) -> None:
        _expect(isinstance(hook, Hook), f"register_hooks was given {hook!r}, not a Hook")
        _expect(isinstance(hook.name, str) and hook.name != "", f"a hook's name must be a string, not {hook.name!r}")
        _expect(callable(hook.body) and _takes_one(hook.body), f"hook {hook.name!r}: its body must take the call")
        _expect(
            hook.point == "before_tool" and hook.limit_s > 0, f"hook {hook.name!r}: no such point, or no time limit"
        )
        guards.append(Guard(hook=hook, plugin=version.name))

    manager.hook.register_hooks(register=take_hook)
    manager.hook.register_tools(register=take_tool)
    manager.hook.register_adapters(register=take_adapter)
    manager.hook.register_prompt_sections(register=take_section)
    registry.tools |= tools
    registry.adapters |= adapters
    registry.sections |= sections
    registry.guards += guards
    registry.versions.append(version)


def _takes_one(body: Callable[..., object]) -> bool:
    try:
        inspect.signature(body).bind(object())
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin that does not say what it takes
    return True


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
