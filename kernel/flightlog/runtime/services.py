"""Running what plugins keep open: each service in a task of its own, its faults kept to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field

from flightlog.core.saying import described
from flightlog.runtime.error_groups import interrupt
from flightlog.runtime.plugin_call import in_own_task
from flightlog.runtime.plugins import offered, plugin_version
from flightlog.runtime.registry import Offer, PluginProblem, Registry
from flightlog_hookspecs.errors import PluginError, UsageError
from flightlog_hookspecs.services import Service

LEAVE_LIMIT_S: Final = 5.0
"""A service that takes longer to be left is cancelled."""


def serve(registry: Registry, nursery: trio.Nursery) -> None:
    """Run the services of all that is and will be registered in `registry` and the scopes inside it, in `nursery`."""

    def start(registry: Registry, offer: Offer) -> None:
        offer.running[:] = [
            Running(service=one.item, offer=offer, registry=registry, spawn=nursery.start_soon)
            for one in offer.services.values()
        ]
        for running in offer.running:
            nursery.start_soon(running.run)

    registry.start = start
    for offer in registry.offers:
        start(registry, offer)


@define(eq=False, kw_only=True)
class Running:
    """A service of `offer` that runs in the scope of `registry`, and what it may do there: its `Scope`."""

    service: Service
    error: str = field(default="", init=False)
    _offer: Offer
    _registry: Registry
    _spawn: Callable[..., None]
    _problem: PluginProblem | None = field(default=None, init=False)
    _offered: Offer | None = field(default=None, init=False)
    _waits_until: float = field(init=False)
    _cancelling: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _entered: trio.Event = field(factory=trio.Event, init=False)
    _leaving: trio.Event = field(factory=trio.Event, init=False)
    _ended: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._waits_until = trio.current_time() + self.service.ready_s

    async def run(self) -> None:
        """Enter it, and leave it once its plugin was taken back and has come to rest."""
        try:
            with self._cancelling:
                await in_own_task(self._live)
        except BaseException as error:
            if (stop := interrupt(error)) is not None:
                raise stop from None
            self.problem(described(error))
        finally:
            self._withdraw()
            self._entered.set()
            self._ended.set()

    async def _live(self) -> None:
        async with self.service.lifespan(self):
            self._entered.set()
            await self._leaving.wait()
            await self._offer.plugin.come_to_rest()
            if self._offered is not None:
                await self._offered.retire()
            self._cancelling.deadline = trio.current_time() + LEAVE_LIMIT_S

    def leave(self) -> None:
        """Its plugin was taken back: offer nothing from now on, and end."""
        self._withdraw()
        self.problem("")
        self._leaving.set()
        if not self._entered.is_set():
            self._cancelling.cancel()

    async def ready(self) -> None:
        """Wait until it has been entered or has failed, but no longer than it may keep a turn waiting."""
        if not self._entered.is_set():
            with trio.move_on_at(self._waits_until):
                await self._entered.wait()

    async def ended(self) -> None:
        """Wait until it was left."""
        await self._ended.wait()

    def offer(self, plugin: object | None) -> None:
        """See `Scope`."""
        self._registry.check_thread()
        if self._leaving.is_set():
            return
        before, after = self._offered, None if plugin is None else self._checked(plugin)
        if after is None:
            self._withdraw()
        else:
            self._enter(after, instead_of=before)
        self._offered = after
        if before is not None:
            self._spawn(before.retire)

    def _checked(self, plugin: object) -> Offer:
        version = plugin_version(plugin)
        try:
            offer = offered(plugin, version)
        except Exception as error:
            raise PluginError(version.name, "registration", described(error)) from error
        if offer.services:
            raise PluginError(version.name, "register_services", "what a service offers has no services of its own")
        offer.plugin.within = self._offer.plugin
        return offer

    def _enter(self, offer: Offer, instead_of: Offer | None) -> None:
        try:
            self._registry.enter(offer, instead_of=instead_of)
        except UsageError as error:
            raise PluginError(offer.plugin.name, "registration", str(error)) from error

    def _withdraw(self) -> None:
        if self._offered is not None:
            self._registry.leave(self._offered)

    def problem(self, error: str) -> None:
        """See `Scope`."""
        if not isinstance(error, str):
            raise UsageError(f"a problem is a text, not {type(error).__name__}")
        problems = self._registry.outermost.problems
        if self._problem is not None:
            problems.remove(self._problem)
            self._problem = None
        self.error = error
        if error and not self._leaving.is_set():
            plugin = self._offer.plugin.version
            self._problem = PluginProblem(
                name=plugin.name, version=plugin.version, error=error, service=self.service.name
            )
            problems.append(self._problem)
