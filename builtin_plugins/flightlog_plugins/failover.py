"""Moves a session to the next model of a list when one fails, and back once that has rested.

    Failover(["anthropic:A", "openai-chat:B"], attempts=2, rest_s=300)

A model that failed `attempts` times in a step, or in a way that is not worth repeating, is left for the next one
of the list, in mid-turn if need be. It then rests: until `rest_s` seconds have passed, or as many as its provider
asked for, no step begins with it. After that the next step goes back to it; an answer under way is never
disturbed. Nothing wraps: when the last model has failed, the turn ends. The session's own model is where the list
begins for it, and a session whose model is not in the list is left alone.

How often each model failed in a step stands in the log. Which of them rest is remembered in memory only, for all
sessions that this plugin is registered for: after a crash, a dead model costs its attempts once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, get_args

from attrs import define, field

from flightlog_hookspecs import FailedRequest, Hook, StepView, Switch, hookimpl, hooks
from flightlog_hookspecs.errors import FailureKind, UsageError
from flightlog_plugins.retry import Retry

PASSING: Final[frozenset[FailureKind]] = frozenset(
    {"rate_limit", "overloaded", "server", "transport", "timeout", "cut", "empty"}
)
"""The kinds of failure that are the model's or its provider's, and not the request's."""


@define(eq=False)
class Failover:
    """A plugin with two hooks. `models` are "adapter:model", the preferred one first; `on` says which failures count.

    Between attempts with the same model it waits as `retry` does; `now` yields seconds that only go on. Raises
    `UsageError` for a list, a kind or a number that makes no sense; a model whose adapter nobody offers is refused
    as the plugin is registered.
    """

    models: Sequence[str] = field(converter=tuple)
    on: frozenset[FailureKind] = field(default=PASSING, converter=frozenset)
    attempts: int = 2
    rest_s: float = 300.0
    retry: Retry = field(factory=Retry)
    now: Callable[[], float] = time.monotonic
    _rests_until_s: dict[str, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if len(self.models) < 2 or len(set(self.models)) < len(self.models):
            raise UsageError(f"the models are {list(self.models)!r}; there must be two or more, each once")
        if unknown := self.on - set(get_args(FailureKind)):
            raise UsageError(f"there is no failure {min(unknown)!r}; there are {', '.join(get_args(FailureKind))}")
        if not (isinstance(self.attempts, int) and self.attempts >= 1 and self.rest_s >= 0):
            raise UsageError(f"attempts is {self.attempts!r} and rest_s {self.rest_s!r}; at least 1 and 0")

    async def choose(self, view: StepView) -> Switch | None:
        """Let the step begin with the most preferred model that does not rest; if all do, with the one it has."""
        if not {view.model, view.session_model} <= set(self.models):
            return None
        model = self._well(self.models[self.models.index(view.session_model) :])
        return Switch(model) if model not in (None, view.model) else None

    async def advise(self, failed: FailedRequest) -> hooks.Retry | Switch | None:
        """Try the same model again, or the next one; no attempt is left for that when the limits are near."""
        if failed.model not in self.models or failed.failure not in self.on:
            return None
        behind = self.models[self.models.index(failed.model) + 1 :]
        failures = sum(failure.model == failed.model for failure in failed.failures)
        again = self.retry.answer(failed)
        if again and failures < self.attempts and failed.attempts_left > len(behind):
            return again
        self._rests_until_s[failed.model] = self.now() + max(self.rest_s, failed.retry_after_s or 0.0)
        # One that rests is better than none.
        return Switch(self._well(behind) or behind[0]) if behind else None

    def _well(self, models: Sequence[str]) -> str | None:
        now = self.now()
        return next((model for model in models if self._rests_until_s.get(model, now) <= now), None)

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        """Register the hooks."""
        register(Hook(point="before_step", body=self.choose, name="failover", models=tuple(self.models)))
        register(Hook(point="on_request_error", body=self.advise, name="failover", models=tuple(self.models)))
