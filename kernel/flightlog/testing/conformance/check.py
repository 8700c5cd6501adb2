"""One rule as a test, whatever kind of plugin it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import trio
from attrs import frozen

from flightlog.runtime.error_groups import leaves


class Broken(AssertionError):
    """A rule was broken: which, in which recording, and at which frame (None: at none)."""

    def __init__(self, rule: str, what: str, *, recording: str = "", frame: int | None = None) -> None:
        self.rule = rule
        self.recording = recording
        self.frame = frame
        where = [f"recording {recording!r}"] * bool(recording) + [f"frame {frame}"] * (frame is not None)
        super().__init__(f"{rule}: {', '.join([*where, what])}")


@frozen
class Check:
    """One rule, for a plugin or for one of its recordings. Call it; it raises `Broken`.

    `str()` is readable as the id of a test: plugin, rule and recording.
    """

    case: str
    rule: str
    of: Callable[[], Awaitable[None]]
    recording: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.case, self.rule, self.recording)))

    def __call__(self) -> None:
        """Run it in a loop of its own."""
        trio.run(self._run)

    async def _run(self) -> None:
        try:
            await self.of()
        except BaseExceptionGroup as group:
            broken = [leaf for leaf in leaves(group) if isinstance(leaf, Broken)]
            if not broken:
                raise
            raise broken[0] from broken[0].__cause__


Case = TypeVar("Case")


def checks_of(name: str, case: Case, rules: Mapping[str, Callable[[Case], Awaitable[None]]]) -> Iterator[Check]:
    """One check of `case` for each of the rules."""
    for rule, of in rules.items():
        yield Check(name, rule, partial(of, case))
