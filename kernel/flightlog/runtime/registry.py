"""What is registered, by scope: the kernel's own and, inside it, a session's.

The loop asks a registry and knows no capability itself. What an inner scope registers shadows what an
outer one has under the same name, for as long as it is registered; hooks and redactions add up instead, so
that no session can shadow a guard of its kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import trio
from attrs import define, field, frozen

from flightlog.core import canonical
from flightlog.core.prices import fits
from flightlog.core.tool_schema import PreparedTool
from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.compaction import Compactor
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import Head, PluginVersion, TokenPrice
from flightlog_hookspecs.goals import GoalCheck
from flightlog_hookspecs.hooks import Hook, Point
from flightlog_hookspecs.prompt import PromptSection
from flightlog_hookspecs.redaction import Redaction
from flightlog_hookspecs.services import Service
from flightlog_hookspecs.subagents import Subagent

if TYPE_CHECKING:
    from flightlog.runtime.services import Running

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CLOSE_LIMIT_S: Final = 5.0
"""An adapter that takes longer to close is left as it is."""


@define(eq=False)
class Loaded:
    """A registered plugin, and how many of its functions run just now. Once taken back, none is started."""

    version: PluginVersion
    within: Loaded | None = None
    """The plugin whose service offers this one: it runs as long as this does."""
    taken_back: bool = field(default=False, init=False)
    _running: int = field(default=0, init=False)
    _waiting: list[trio.Event] = field(factory=list, init=False)

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.version.name

    @contextmanager
    def running(self) -> Iterator[None]:
        """One of its functions runs meanwhile."""
        self._running += 1
        token = _RUNNING_IN.set(_RUNNING_IN.get() | {self})
        try:
            with self.within.running() if self.within else nullcontext():
                yield
        finally:
            _RUNNING_IN.reset(token)
            self._running -= 1
            if not self._running:
                while self._waiting:
                    self._waiting.pop().set()

    @property
    def runs_here(self) -> bool:
        """Whether this code is called by one of its functions."""
        return self in _RUNNING_IN.get()

    async def come_to_rest(self) -> None:
        """Wait until none of its functions runs. One of them cannot wait for itself, and does not."""
        while self._running and not self.runs_here:
            event = trio.Event()
            self._waiting.append(event)
            await event.wait()


_RUNNING_IN: ContextVar[frozenset[Loaded]] = ContextVar("flightlog_running_in", default=frozenset())
"""The plugins whose functions this code is called by; what they start in threads and tasks inherits it."""


@frozen
class Registered(Generic[T_co]):
    """Something that was registered, and the plugin it came with."""

    item: T_co
    plugin: Loaded


@frozen(kw_only=True, eq=False)
class Offer:
    """All that one plugin registers; entered as a whole or not at all."""

    plugin: Loaded
    tools: dict[str, Registered[PreparedTool]] = field(factory=dict)
    adapters: dict[str, Registered[Adapter]] = field(factory=dict)
    sections: dict[str, Registered[PromptSection]] = field(factory=dict)
    subagents: dict[str, Registered[Subagent]] = field(factory=dict)
    parameters: dict[str, Registered[str]] = field(factory=dict)
    """Values in canonical JSON."""
    prices: dict[str, Registered[TokenPrice]] = field(factory=dict)
    goal_checks: dict[str, Registered[GoalCheck]] = field(factory=dict)
    compactors: dict[str, Registered[Compactor]] = field(factory=dict)
    hooks: list[Registered[Hook]] = field(factory=list)
    redactions: list[Registered[Redaction]] = field(factory=list)
    services: dict[str, Registered[Service]] = field(factory=dict)
    running: list[Running] = field(factory=list, init=False)
    """Its services, where they run."""

    async def retire(self) -> None:
        """Once it is offered no more: wait until nothing of it runs, its services included; close its adapters."""
        await self.plugin.come_to_rest()
        if not self.plugin.runs_here:
            for running in self.running:
                await running.ended()
        while self.adapters:
            _, adapter = self.adapters.popitem()
            if close := getattr(adapter.item, "aclose", None):
                # One that fails or hangs keeps nobody else from closing; there is no log left to say so.
                with trio.move_on_after(CLOSE_LIMIT_S, shield=True), suppress(Exception):
                    await close()


@frozen(kw_only=True)
class PluginProblem:
    """A plugin that was left out and why, or what is wrong with its `service` at the moment.

    `where` is "file:line", the file alone or "", as far as it is known; `distribution` is what pip calls it.
    """

    name: str
    error: str
    where: str = ""
    version: str = ""
    distribution: str = ""
    service: str = ""

    @property
    def said(self) -> str:
        """In words."""
        what = f"service {self.service!r} of plugin" if self.service else "plugin"
        return f"{what} {self.name!r} {'fails' if self.service else 'was left out'}: {self.error}"


class Registry:
    """Everything registered in one scope, and through it all that is in the scopes around it.

    With `allowed` it is that of a child: of the tools around it only those are there, and what a model is told
    besides comes from the outermost scope, for what its parent's session is told is not meant for it.
    """

    def __init__(self, outer: Registry | None = None, allowed: Collection[str] | None = None) -> None:
        self.outer = outer
        self._allowed = allowed
        self.problems: list[PluginProblem] = []
        self.start: Callable[[Registry, Offer], None] | None = outer.start if outer else None
        """Starts the services of what is entered; None where none run."""
        self.changes: trio.lowlevel.ParkingLot = outer.changes if outer else trio.lowlevel.ParkingLot()
        self._thread = threading.get_ident()
        self._offers: list[Offer] = []
        self._tools: dict[str, Registered[PreparedTool]] = {}
        self._adapters: dict[str, Registered[Adapter]] = {}
        self._sections: dict[str, Registered[PromptSection]] = {}
        self._subagents: dict[str, Registered[Subagent]] = {}
        self._parameters: dict[str, Registered[str]] = {}
        self._prices: dict[str, Registered[TokenPrice]] = {}
        self._goal_checks: dict[str, Registered[GoalCheck]] = {}
        self._compactors: dict[str, Registered[Compactor]] = {}

    @property
    def tools(self) -> Mapping[str, Registered[PreparedTool]]:
        """The tools by name."""
        outer = self.outer.tools if self.outer else {}
        if self._allowed is not None:
            outer = {name: outer[name] for name in self._allowed if name in outer}
        return _shadowing(self._tools, outer)

    @property
    def adapters(self) -> Mapping[str, Registered[Adapter]]:
        """The adapters by name."""
        return _shadowing(self._adapters, self.outer.adapters if self.outer else {})

    @property
    def sections(self) -> Mapping[str, Registered[PromptSection]]:
        """The prompt sections by name."""
        return _shadowing(self._sections, self._told.sections if self._told else {})

    @property
    def subagents(self) -> Mapping[str, Registered[Subagent]]:
        """The subagents by name."""
        return _shadowing(self._subagents, self.outer.subagents if self.outer else {})

    @property
    def parameters(self) -> Mapping[str, Registered[str]]:
        """The values of the request parameters by name, in canonical JSON."""
        return _shadowing(self._parameters, self._told.parameters if self._told else {})

    @property
    def goal_checks(self) -> Mapping[str, Registered[GoalCheck]]:
        """The goal checks by name."""
        return _shadowing(self._goal_checks, self.outer.goal_checks if self.outer else {})

    @property
    def compactor(self) -> Compactor | None:
        """What makes the context shorter: the last that was registered here, or in the scopes around."""
        if self._compactors:
            return next(reversed(self._compactors.values())).item
        return self.outer.compactor if self.outer else None

    @property
    def _told(self) -> Registry | None:
        """The scope around, from which sections and parameters come, too."""
        scope = self.outer
        while self._allowed is not None and scope and scope.outer:
            scope = scope.outer
        return scope

    @property
    def versions(self) -> tuple[PluginVersion, ...]:
        """The plugins in the order in which they were registered, outer scopes first."""
        return tuple(offer.plugin.version for offer in self.offers)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What each plugin registered, in the order of `versions`."""
        return (*self.outer.offers, *self._offers) if self.outer else tuple(self._offers)

    def hooks(self, point: Point) -> list[Registered[Hook]]:
        """The hooks at `point` in the order in which they are asked."""
        own = [hook for offer in self._offers for hook in offer.hooks if hook.item.point == point]
        return self.outer.hooks(point) + own if self.outer else own

    def redactions(self) -> list[Registered[Redaction]]:
        """The redactions in the order in which a text is put through them."""
        own = [redaction for offer in self._offers for redaction in offer.redactions]
        return self.outer.redactions() + own if self.outer else own

    @property
    def outermost(self) -> Registry:
        """The scope around all others."""
        return self.outer.outermost if self.outer else self

    def enter(self, offer: Offer, *, instead_of: Offer | None = None) -> None:
        """Register all of `offer`, and take back `instead_of`, at once.

        Raises `UsageError`, and nothing is changed, when a name is taken in this scope.
        """
        self.check_thread()
        for what, mine, its in self._tables(offer):
            for taken in its:
                if taken in mine and (instead_of is None or mine[taken].plugin is not instead_of.plugin):
                    by = mine[taken].plugin.name
                    raise UsageError(f"{what} {taken!r} exists already: plugin {by!r} registered it")
        if instead_of is not None:
            self.leave(instead_of)
        for _, mine, its in self._tables(offer):
            mine.update(its)
        self._offers.append(offer)
        self.changes.unpark_all()
        if self.start is not None:
            self.start(self, offer)

    def leave(self, offer: Offer) -> None:
        """Take back all of `offer`, in reverse order. Does nothing when that was done before."""
        self.check_thread()
        if offer not in self._offers:
            return
        self._offers.remove(offer)
        offer.plugin.taken_back = True
        for running in offer.running:
            running.leave()
        for _, mine, its in reversed(self._tables(offer)):
            for name in reversed(its):
                if name in mine and mine[name].plugin is offer.plugin:
                    del mine[name]

    def check_thread(self) -> None:
        """Raise `UsageError` in any thread but the kernel's: what the loop asks does not change under it."""
        if threading.get_ident() != self._thread:
            raise UsageError(
                "plugins are registered and taken back on the kernel's own thread; from a tool or hook in another "
                "one: trio.from_thread.run_sync(kernel.register, plugin)"
            )

    async def ready(self) -> None:
        """Wait for the services, here and in the scopes around, that a turn may wait for."""
        for offer in self.offers:
            for running in offer.running[:]:
                await running.ready()

    async def changed(self) -> None:
        """Wait until something more is registered, here or in another scope of the same kernel."""
        await self.changes.park()

    def holds(self, offer: Offer) -> bool:
        """Whether `offer` is registered here."""
        return offer in self._offers

    def _tables(self, offer: Offer) -> list[tuple[str, dict[str, Registered[Any]], dict[str, Registered[Any]]]]:
        return [
            ("tool", self._tools, offer.tools),
            ("adapter", self._adapters, offer.adapters),
            ("prompt section", self._sections, offer.sections),
            ("subagent", self._subagents, offer.subagents),
            ("parameter", self._parameters, offer.parameters),
            ("price of", self._prices, offer.prices),
            ("goal check", self._goal_checks, offer.goal_checks),
            ("compactor", self._compactors, offer.compactors),
        ]

    async def close(self) -> None:
        """Take back what is still registered in this scope, the last first, once its calls have come to rest."""
        for offer in reversed(self._offers[:]):
            self.leave(offer)
            await offer.retire()

    def adapter_of(self, model: str) -> tuple[Registered[Adapter], str]:
        """The adapter of "adapter:model" and the model's own name. Raises `UsageError`."""
        name, colon, rest = model.partition(":") if isinstance(model, str) else ("", "", "")
        if not colon or not rest:
            raise UsageError(f"model {model!r} is not of the form 'adapter:model', for example 'scripted:echo'")
        adapter = self.adapters.get(name)
        if adapter is None:
            known = ", ".join(sorted(self.adapters)) or "none"
            raise UsageError(f"no adapter named {name!r} (known: {known}). Install or pass its plugin.{self._broken}")
        return adapter, rest

    def serves(self, model: str) -> bool:
        """Whether the adapter of "adapter:model" is there."""
        return model.partition(":")[0] in self.adapters

    def goal_check_of(self, name: str) -> Registered[GoalCheck]:
        """The goal check called `name`. Raises `UsageError` when nobody offers it."""
        check = self.goal_checks.get(name)
        if check is None:
            known = ", ".join(sorted(self.goal_checks)) or "none"
            raise UsageError(
                f"no goal check named {name!r} (known: {known}). Install or pass its plugin.{self._broken}"
            )
        return check

    @property
    def _broken(self) -> str:
        """What was left out, which may be why something is not known."""
        return "".join(f" {problem.said[0].upper()}{problem.said[1:]}" for problem in self.outermost.problems)

    def price_of(self, model: str) -> TokenPrice | None:
        """What the tokens of "adapter:model" cost now: the first price that fits, inner scopes first; None without."""
        own = next((price.item for pattern, price in self._prices.items() if fits(pattern, model)), None)
        return self.outer.price_of(model) if own is None and self.outer else own

    def head(self, model: str, system: str) -> Head:
        """The head that a request with this system text would have now."""
        adapter, name = self.adapter_of(model)
        tools, values = self.tools, self.parameters
        specs = tuple(tools[tool].item.spec for tool in sorted(tools))
        parameters = ",".join(f"{canonical.dumps(name)}:{values[name].item}" for name in sorted(values))
        return Head(adapter=adapter.item.name, model=name, system=system, tools=specs, parameters=f"{{{parameters}}}")


def _shadowing(own: Mapping[str, T], outer: Mapping[str, T]) -> Mapping[str, T]:
    """What is registered in both, as it stands now; `own` counts where both have a name."""
    return {**outer, **own} if own and outer else own or outer
