"""Tries a failed request again: the one policy of the box for that. Without it, a failure ends its turn.

    Retry(base_s=0.5, max_s=30.0, max_wait_s=60.0)

It is discovered, with these defaults. What fails for good is left alone. Before the n-th further attempt with a
model it waits between half and all of `base_s` * 2 ** (n - 1), at most `max_s`: at random, so that many clients do
not come back together. A provider that asks to wait is never asked sooner; one that asks for more than
`max_wait_s` is not asked again, and the turn ends saying its wish. `Limits.attempts_per_step` bounds the attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import isfinite
from typing import Final

from attrs import frozen

from flightlog_hookspecs import FailedRequest, Hook, hookimpl, hooks
from flightlog_hookspecs.errors import UsageError

_DOUBLINGS_MAX: Final = 64
"""More of them would only overflow."""


@frozen(kw_only=True)
class Retry:
    """A plugin with one hook. `random` yields numbers from 0 up to 1. Raises `UsageError` for times that make no sense.

    It keeps nothing in memory: how often a request has failed stands in the log.
    """

    base_s: float = 0.5
    max_s: float = 30.0
    max_wait_s: float = 60.0
    random: Callable[[], float] = random.random

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.base_s <= self.max_s and isfinite(self.max_s)):
            raise UsageError(f"base_s is {self.base_s!r} and max_s {self.max_s!r}; it must be 0 <= base_s <= max_s")
        if not self.max_wait_s >= 0:
            raise UsageError(f"max_wait_s is {self.max_wait_s!r}; it must be at least 0")

    async def advise(self, failed: FailedRequest) -> hooks.Retry | None:
        """The hook."""
        return self.answer(failed)

    def answer(self, failed: FailedRequest) -> hooks.Retry | None:
        """Another attempt with the same model, and when; None when it would not help, or not soon enough."""
        wish_s = failed.retry_after_s or 0.0
        if not failed.retryable or wish_s > self.max_wait_s:
            return None
        failures = sum(failure.model == failed.model for failure in failed.failures)
        half_s = min(self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.max_s) / 2
        return hooks.Retry(after_s=max(half_s, wish_s) + half_s * self.random())

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        """Register the hook."""
        register(Hook(point="on_request_error", body=self.advise, name="retry"))
