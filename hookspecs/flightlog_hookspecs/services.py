"""Services: what a plugin keeps open beside the sessions, such as a connection or a child process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import frozen


class Scope(Protocol):
    """What a service may do in the kernel or session that its plugin is registered with. On the kernel's own thread."""

    def offer(self, plugin: object | None) -> None:
        """Register `plugin`, which may be any but has no services, in place of what was offered before; None: nothing.

        As with every registration: what it changes in a head takes effect at the next turn, what runs of the one
        before may end. It is taken back with the service's own plugin at the latest, and from then on this does
        nothing. Raises `PluginError`, and what was offered before stays.
        """
        ...

    def problem(self, error: str) -> None:
        """Say what is wrong, in place of what was said before; "" that nothing is any more.

        It is listed in `kernel.registry.problems`; sessions that run meanwhile record it as `plugin/error`, redacted.
        """
        ...


@frozen(kw_only=True)
class Service:
    """Something that lives as long as its plugin is registered: `lifespan(scope)` returns an async context manager.

    It is entered and left in one task of its own, on trio, so it may open nurseries and cancel scopes and whatever
    needs them. It is entered once its plugin is registered with an open kernel or session, not where a log is only
    read. It is left once the plugin is taken back and its running calls have come to rest; it has 5 seconds for
    that and is cancelled then. Whatever it raises is listed as a problem, and ends it.

    A turn begins, its tools and prompt sections are gathered, once it has been entered, or `ready_s` seconds after
    it began to be: a slow one delays a first turn, and no further one.
    """

    name: str
    """What problems call it; unique in its plugin."""
    lifespan: Callable[[Scope], AbstractAsyncContextManager[object]]
    """Returns what is entered and left."""
    ready_s: float = 10.0
    """Seconds that a turn may wait for it to be entered."""
