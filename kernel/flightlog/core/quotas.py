"""What may be used: by one task (`Budget`), and by all tasks and sessions of a file together (`Quotas`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from attrs import Attribute, field, fields, frozen, validators

from flightlog_hookspecs.events import TaskClass

OF: Final = {"calls_of": "calls", "requests_of": "requests"}
"""The cards of one tool or adapter each: `calls:NAME`, `requests:NAME`."""


RATE_MAX_S: Final = 10 * 365.25 * 86_400


def _frozen(given: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(given))


def _whole(instance: object, attribute: Attribute[Any], value: object) -> None:
    if type(value) is not int or not 0 < value < 2**53:
        raise ValueError(f"{attribute.name} must be a whole number above 0, not {value!r}")


def _named(instance: object, attribute: Attribute[Any], value: Mapping[str, Any]) -> None:
    for name, most in value.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"{attribute.name} names tools or adapters, not {name!r}")
        _whole(instance, attribute, most)


def _card() -> Any:
    return field(default=None, validator=validators.optional(_whole))


def _cards() -> Any:
    return field(factory=dict, converter=_frozen, validator=_named)


@frozen(kw_only=True)
class Budget:
    """The cards of a task: how much of each it may use. None, or not named, for no bound but those of the kernel.

    Counted from the log, so that nothing is forgotten in a crash. Raises `ValueError` for what is no whole number above
    0.
    """

    tokens: int | None = _card()
    """Tokens of all requests and answers, those of its children included."""
    step_tokens: int | None = _card()
    """Tokens of one step."""
    summary_tokens: int | None = _card()
    """Tokens of all requests for summaries; they count for `tokens`, too."""
    requests: int | None = _card()
    """Requests to models, failed ones and those for summaries included."""
    requests_of: Mapping[str, int] = _cards()
    """The same by adapter."""
    calls: int | None = _card()
    """Tool bodies started. One that starts again after a crash is the same call."""
    calls_of: Mapping[str, int] = _cards()
    """The same by tool."""
    tools_at_once: int | None = _card()
    """Tool bodies that run side by side."""
    retries: int | None = _card()
    """Requests that failed. 60 unless said otherwise."""
    subagents: int | None = _card()
    """Children it may give tasks to. 60 unless said otherwise."""
    active_s: int | None = _card()
    """Seconds of work on a day (UTC). Pauses and downtime are free."""
    step_s: int | None = _card()
    """Seconds of work on one step."""

    @property
    def cards(self) -> dict[str, int]:
        """What each card allows, by its name in the log."""
        found: dict[str, int] = {}
        for attribute in fields(type(self)):
            value = getattr(self, attribute.name)
            if attribute.name in OF:
                found |= {f"{OF[attribute.name]}:{name}": most for name, most in value.items()}
            elif value is not None:
                found[attribute.name] = value
        return found


NO_BUDGET: Final = Budget()


@frozen
class Rate:
    """At most `most` in any `per_s` seconds, ten years at most.

    Raises `ValueError` for a rate that lets nothing through.
    """

    most: int = field(validator=_whole)
    per_s: float = field(
        default=60.0, validator=[validators.instance_of((int, float)), validators.gt(0), validators.le(RATE_MAX_S)]
    )


@frozen(kw_only=True)
class Pool:
    """What all tasks of one class may use together, in all processes of a file. None for no bound."""

    tokens: Rate | None = field(default=None, validator=validators.optional(validators.instance_of(Rate)))
    """Tokens of requests and answers."""
    calls: Rate | None = field(default=None, validator=validators.optional(validators.instance_of(Rate)))
    """Requests and tool calls."""
    tasks_at_once: int | None = _card()
    """Tasks that are worked on at the same time."""


def _frozen_rates(given: Mapping[str, Rate]) -> Mapping[str, Rate]:
    return MappingProxyType(dict(given))


def _frozen_pools(given: Mapping[TaskClass, Pool]) -> Mapping[TaskClass, Pool]:
    return MappingProxyType(dict(given))


def _pools(instance: object, attribute: Attribute[Any], value: Mapping[str, object]) -> None:
    for name, pool in value.items():
        if name not in get_args(TaskClass) or not isinstance(pool, Pool):
            raise ValueError(f"pools maps {', '.join(get_args(TaskClass))} to a Pool each, not {name!r} to {pool!r}")


def _rates(instance: object, attribute: Attribute[Any], value: Mapping[str, object]) -> None:
    for name, rate in value.items():
        kind, _, rest = name.partition(":")
        if kind not in ("tool", "adapter") or not rest or not isinstance(rate, Rate):
            raise ValueError(f"rates maps 'tool:NAME' or 'adapter:NAME' to a Rate each, not {name!r} to {rate!r}")


@frozen(kw_only=True)
class Quotas:
    """What all that a file holds may use together, in all processes that are given the same.

    Raises `ValueError` for classes, names and numbers that cannot be.
    """

    rates: Mapping[str, Rate] = field(factory=dict, converter=_frozen_rates, validator=_rates)
    """How often a tool ("tool:NAME") may be called and a model asked ("adapter:NAME"), by any session."""
    pools: Mapping[TaskClass, Pool] = field(factory=dict, converter=_frozen_pools, validator=_pools)
    """What the tasks of each class may use."""
    tasks_at_once: int | None = _card()
    """Tasks of the file that are worked on at the same time, in any process."""

    @property
    def bounds(self) -> dict[str, Rate]:
        """All rates, by the name of what each of them bounds: `rate:tool:NAME`, `pool:CLASS:tokens`, and so on."""
        pools = {
            f"pool:{task_class}:{what}": rate
            for task_class, pool in self.pools.items()
            for what, rate in (("tokens", pool.tokens), ("calls", pool.calls))
            if rate is not None
        }
        return {f"rate:{name}": rate for name, rate in self.rates.items()} | pools

    def pool(self, task_class: TaskClass | None) -> Pool:
        """That of a class; one without bounds for what is no task."""
        return self.pools.get(task_class, NO_POOL) if task_class else NO_POOL


NO_POOL: Final = Pool()
NO_QUOTAS: Final = Quotas()
