"""How plugins enter: each on its own, as a whole or not at all.

pluggy carries registration only: its callers stop at the first raise and cannot time a hook out, so
what happens in the loop is done by objects that are called one by one.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, get_args

import pluggy

from flightlog.core import canonical
from flightlog.core.canonical import paired
from flightlog.core.context import HOST_SECTION
from flightlog.core.prices import token_price
from flightlog.core.saying import described, shown
from flightlog.core.shape import misfit
from flightlog.core.tool_schema import prepare
from flightlog.runtime.prompting import given_step
from flightlog.runtime.registration import Registration
from flightlog.runtime.registry import Loaded, Offer, Registered, Registry
from flightlog.runtime.subagent_tool import as_tool
from flightlog_hookspecs import specs
from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.compaction import Compactor
from flightlog_hookspecs.errors import BadPayload, PluginError, UsageError
from flightlog_hookspecs.events import Head, Message, PluginVersion, TokenPrice
from flightlog_hookspecs.goals import GoalCheck
from flightlog_hookspecs.hooks import Hook, Point
from flightlog_hookspecs.markers import CONTRACT_VERSION, PROJECT
from flightlog_hookspecs.parameters import Parameter
from flightlog_hookspecs.prices import Price
from flightlog_hookspecs.prompt import PromptSection, SectionKind
from flightlog_hookspecs.redaction import Redaction
from flightlog_hookspecs.services import Service
from flightlog_hookspecs.subagents import Subagent
from flightlog_hookspecs.tools import Tool

ALLOW_VARIABLE: Final = "FLIGHTLOG_LOAD_PLUGINS"
CONTRACT_ATTRIBUTE: Final = "flightlog_contract"

T = TypeVar("T")
Discover = bool | Collection[str]


def load_plugins(*, discover: Discover, plugins: Sequence[object]) -> Registry:
    """A registry filled from `plugins` and, with `discover`, from installed entry points.

    `discover` may name the entry points to load; with True, the environment variable FLIGHTLOG_LOAD_PLUGINS
    may (comma-separated). What is in `plugins` takes the place of a discovered plugin that is the same module or
    of the same class. A discovered plugin that fails is quarantined; one that was passed in raises `PluginError`.
    """
    registry = Registry()
    names = _allowed() if discover is True else discover
    _expect(
        isinstance(discover, bool)
        or (
            not isinstance(discover, str)
            and isinstance(discover, Collection)
            and all(isinstance(name, str) for name in discover)
        ),
        f"discover must be True, False or the names of entry points, not {discover!r}",
    )
    passed_in = [_enter(registry, plugin) for plugin in plugins]
    if not isinstance(names, bool):
        from flightlog.runtime import quarantine  # loads what reads the files of installed packages

        quarantine.discover(registry, names, {_called(plugin) for plugin in plugins}, offered)
    for offer in passed_in:
        _check_models(registry, offer)  # of adapters that may have been discovered just now
    return registry


def register(registry: Registry, plugin: object) -> Registration:
    """Register `plugin` in the scope of `registry`. Raises `PluginError`, and nothing is registered."""
    registry.check_thread()
    offer = _enter(registry, plugin)
    _check_models(registry, offer)
    return Registration(registry, offer)


def _enter(registry: Registry, plugin: object) -> Offer:
    version = plugin_version(plugin)
    try:
        offer = offered(plugin, version)
        registry.enter(offer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(version.name, "registration", described(error)) from error
    return offer


def plugin_version(plugin: object) -> PluginVersion:
    """What the log calls a plugin that was passed in."""
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return PluginVersion(name=paired(str(name)), version=paired(str(getattr(plugin, "__version__", ""))))


def _called(plugin: object) -> str:
    """What an entry point calls `plugin`: a module, or the class it is made of."""
    kind = type(plugin)
    return plugin.__name__ if inspect.ismodule(plugin) else f"{kind.__module__}:{kind.__qualname__}"


def _check_models(registry: Registry, offer: Offer) -> None:
    """Raise `PluginError`, and take `offer` back, unless every model that its hooks may switch to has an adapter."""
    try:
        for hook in offer.hooks:
            for model in hook.item.models:
                registry.adapter_of(model)
    except UsageError as error:
        registry.leave(offer)
        raise PluginError(offer.plugin.name, "registration", str(error)) from error


def _allowed() -> Collection[str] | None:
    """The names in the variable; none of them when it is empty, None when it is not set."""
    names = os.environ.get(ALLOW_VARIABLE)
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def offered(plugin: object, version: PluginVersion) -> Offer:
    """All that `plugin` registers, checked. Raises whatever is wrong with it."""
    needed = getattr(plugin, CONTRACT_ATTRIBUTE, CONTRACT_VERSION)
    _expect(isinstance(needed, int), f"{CONTRACT_ATTRIBUTE} must be a number, not {needed!r}")
    _expect(
        needed <= CONTRACT_VERSION,
        f"needs version {needed} of the plugin contract, this flightlog has {CONTRACT_VERSION}: upgrade flightlog",
    )
    # A manager of its own: pluggy's callers stop at the first raise, which must cost one plugin only.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    manager.register(plugin, version.name)
    _expect(bool(manager.get_hookcallers(plugin)), f"{shown(plugin)} has no hooks: is @hookimpl missing?")
    manager.check_pending()  # finds a misspelt hook, which would otherwise never be called
    offer = Offer(plugin=Loaded(version))
    with _registering() as register:
        for hook, take in _takers(offer, version).items():
            getattr(manager.hook, hook)(register=register(take))
    return offer


_Take = Callable[[Any], None]
"""Takes one thing that a plugin registers."""


def _takers(offer: Offer, version: PluginVersion) -> dict[str, _Take]:
    """What takes into `offer` what is registered at each hook."""
    return {
        "register_hooks": lambda one: offer.hooks.append(Registered(_hook(one), offer.plugin)),
        "register_redactions": lambda one: offer.redactions.append(Registered(_redaction(one), offer.plugin)),
        "register_tools": lambda one: _take(offer, offer.tools, "tool", _tool(one, version)),
        "register_adapters": lambda one: _take(offer, offer.adapters, "adapter", _adapter(one)),
        "register_prompt_sections": lambda one: _take(offer, offer.sections, "prompt section", _section(one)),
        "register_subagents": lambda one: _take_subagent(offer, one, version),
        "register_parameters": lambda one: _take(offer, offer.parameters, "parameter", _parameter(one)),
        "register_prices": lambda one: _take(offer, offer.prices, "price of", _price(one)),
        "register_goal_checks": lambda one: _take(offer, offer.goal_checks, "goal check", _goal_check(one)),
        "register_compactors": lambda one: _take(offer, offer.compactors, "compactor", _compactor(one)),
        "register_services": lambda one: _take(offer, offer.services, "service", _service(one)),
    }


@contextmanager
def _registering() -> Iterator[Callable[[_Take], _Take]]:
    """What makes a `register` of what takes. It takes nothing once the context is left: nobody would look."""
    over = False

    def register_of(take: _Take) -> _Take:
        def register(one: Any) -> None:
            _expect(not over, "registered too late: `register` is for its hook only; kernel.register() takes in more")
            take(one)

        return register

    try:
        yield register_of
    finally:
        over = True


def _take(offer: Offer, table: dict[str, Registered[T]], what: str, named: tuple[str, T]) -> None:
    name, item = named
    _expect(_is_whole(name), f"{what} {name!r}: a character of its name is in two halves")
    _expect(name not in table, f"{what} {name!r} exists already")
    table[name] = Registered(item, offer.plugin)


def _tool(tool: Tool, version: PluginVersion) -> tuple[str, Any]:
    _expect(isinstance(tool, Tool), f"register_tools was given {tool!r}, not a Tool")
    return tool.name, prepare(tool, version.name, version.version)


def _adapter(adapter: Adapter) -> tuple[str, Adapter]:
    _expect(isinstance(adapter, Adapter), f"register_adapters was given {adapter!r}, not an Adapter")
    _expect(
        isinstance(adapter.name, str) and adapter.name != "" and ":" not in adapter.name,
        f"adapter name {adapter.name!r} must be a string without a colon: models are named 'adapter:model'",
    )
    return adapter.name, adapter


def _section(section: PromptSection) -> tuple[str, PromptSection]:
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
    return section.name, given_step(section)


def _take_subagent(offer: Offer, subagent: Subagent, version: PluginVersion) -> None:
    """Offer it, and the tool that it is to the model."""
    _expect(isinstance(subagent, Subagent), f"register_subagents was given {subagent!r}, not a Subagent")
    wrong = misfit(subagent)
    _expect(not wrong, f"subagent {subagent.name!r}: its {wrong} is not what it must be")
    for name in ("timeout_s", "steps_per_turn", "at_once"):
        limit = getattr(subagent, name)
        _expect(limit is None or 0 < limit < math.inf, f"subagent {subagent.name!r}: its {name} is no limit")
    _expect(
        not (subagent.background and subagent.effect == "read"),
        f"subagent {subagent.name!r}: one in the background cannot say that it only reads",
    )
    _take(offer, offer.tools, "tool", _tool(as_tool(subagent), version))
    _take(offer, offer.subagents, "subagent", (subagent.name, subagent))


def _parameter(parameter: Parameter) -> tuple[str, str]:
    """Its name and its value in canonical JSON: what becomes of the value afterwards changes nothing."""
    _expect(isinstance(parameter, Parameter), f"register_parameters was given {parameter!r}, not a Parameter")
    name = parameter.name
    _expect(
        isinstance(name, str) and name.isascii() and name.isidentifier(),
        f"a parameter's name must be ASCII letters, digits and '_', not {name!r}",
    )
    try:
        return name, canonical.dumps(canonical.plain(parameter.value))
    except BadPayload as error:
        raise UsageError(f"parameter {name!r} is not JSON: {error}") from None


def _service(service: Service) -> tuple[str, Service]:
    _expect(isinstance(service, Service), f"register_services was given {service!r}, not a Service")
    _expect(
        isinstance(service.name, str) and service.name != "",
        f"a service's name must be a string, not {service.name!r}",
    )
    _expect(
        callable(service.lifespan) and _takes_one(service.lifespan) and service.ready_s >= 0,
        f"service {service.name!r}: its lifespan must take one argument, and ready_s be a number of seconds",
    )
    return service.name, service


def _goal_check(check: GoalCheck) -> tuple[str, GoalCheck]:
    _expect(isinstance(check, GoalCheck), f"register_goal_checks was given {check!r}, not a GoalCheck")
    _expect(
        isinstance(check.name, str) and check.name != "",
        f"a goal check's name must be a string, not {check.name!r}",
    )
    _expect(
        callable(check.body) and _takes_one(check.body) and check.limit_s > 0,
        f"goal check {check.name!r}: its body must take one argument, and limit_s be a number of seconds",
    )
    return check.name, check


def _compactor(compactor: Compactor) -> tuple[str, Compactor]:
    _expect(isinstance(compactor, Compactor), f"register_compactors was given {compactor!r}, not a Compactor")
    wrong = misfit(compactor)
    _expect(
        not wrong and compactor.name != "" and _is_whole(compactor.instruction) and _is_whole(compactor.note),
        f"compactor {compactor.name!r}: its {wrong or 'name, instruction or note'} is not what it must be",
    )
    _expect(compactor.keep_steps >= 0, f"compactor {compactor.name!r}: keep_steps is a number from 0 on")
    return compactor.name, compactor


def _price(price: Price) -> tuple[str, TokenPrice]:
    _expect(isinstance(price, Price), f"register_prices was given {price!r}, not a Price")
    return price.model, token_price(price)


def _hook(hook: Hook) -> Hook:
    _expect(isinstance(hook, Hook), f"register_hooks was given {hook!r}, not a Hook")
    _expect(
        isinstance(hook.name, str) and hook.name != "" and _is_whole(hook.name),
        f"a hook's name must be a string, not {hook.name!r}",
    )
    _expect(callable(hook.body) and _takes_one(hook.body), f"hook {hook.name!r}: its body must take one argument")
    _expect(
        hook.point in get_args(Point) and hook.limit_s > 0,
        f"hook {hook.name!r}: there is no point {hook.point!r}, or no time limit",
    )
    return hook


def _redaction(redaction: Redaction) -> Redaction:
    _expect(isinstance(redaction, Redaction), f"register_redactions was given {redaction!r}, not a Redaction")
    _expect(
        isinstance(redaction.name, str) and redaction.name != "",
        f"a redaction's name must be a string, not {redaction.name!r}",
    )
    _expect(
        callable(redaction.body) and _takes_one(redaction.body) and not inspect.iscoroutinefunction(redaction.body),
        f"redaction {redaction.name!r}: its body must be a plain function that takes one argument",
    )
    return redaction


def _is_whole(text: str) -> bool:
    """Whether the log can hold `text`, a name that stands in events, as it is."""
    return paired(text) == text


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


def bound_thinking(adapter: Adapter) -> bool:
    """Whether the provider's thinking belongs to the very conversation that it was thought in."""
    return getattr(adapter, "bound_thinking", False) is True


def window_of(adapter: Adapter, model: str) -> int | None:
    """The tokens that a request to the adapter's `model` and its answer may have together, None if not known."""
    window = getattr(adapter, "window", None)
    if window is None:
        return None
    try:
        tokens = window(model)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(adapter.name, "window", described(error)) from error
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise PluginError(adapter.name, "window", f"returned {shown(tokens)}, not a number of tokens")
    return tokens


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
