"""The way back: what `register` returns."""

from __future__ import annotations

import warnings
import weakref
from typing import Self

import trio

from flightlog.runtime.registry import Offer, Registry


class Registration:
    """A plugin that was registered with a kernel or a session. Close it, or leave it as a context, to take it back.

    From then on nothing of it is offered or started; closing returns once what runs of it has come to
    rest, unless it is closed by what runs of it. It refers to its scope weakly: closing twice, or after the
    scope is gone, does nothing. One that is collected unclosed warns, and leaves its plugin to the scope.
    """

    def __init__(self, registry: Registry, offer: Offer) -> None:
        self._registry = weakref.ref(registry)
        self._offer = weakref.ref(offer)
        self.name = offer.plugin.name

    @property
    def closed(self) -> bool:
        """Whether the plugin is registered no more."""
        registry, offer = self._registry(), self._offer()
        return registry is None or offer is None or not registry.holds(offer)

    async def aclose(self) -> None:
        """Take the plugin back. Cancelling stops the waiting only."""
        registry, offer = self._registry(), self._offer()
        if registry is not None and offer is not None:
            registry.leave(offer)
            await offer.retire()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(
                f"the registration of plugin {self.name!r} was dropped without being closed; it stays registered "
                "until its kernel or session is closed",
                ResourceWarning,
                stacklevel=2,
            )
