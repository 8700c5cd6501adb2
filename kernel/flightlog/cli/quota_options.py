"""Budgets and quotas as people write them on a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import click

from flightlog.cli.moments import SpanType
from flightlog.cli.numbers import WholeType
from flightlog.core.budget import is_card
from flightlog.core.quotas import OF, Budget, Pool, Quotas, Rate
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import TaskClass

_MAX_DIGITS: Final = 18

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def budget_of(cards: Sequence[str]) -> Budget:
    """The budget that CARD=N words give: `tokens=500000`, `calls:send_mail=3`. Raises `UsageError`."""
    fields: dict[str, Any] = {}
    for word in cards:
        card, sign, number = word.rpartition("=")
        if not sign or not is_card(card):
            raise UsageError(f"{word!r} is not CARD=N, with a card such as tokens, calls or calls:TOOL")
        kind, _, name = card.partition(":")
        many = next((field for field, cards_of in OF.items() if name and cards_of == kind), "")
        there = fields.setdefault(many, {}) if many else fields
        if (name or kind) in there:
            raise UsageError(f"{card} is given twice")
        there[name or kind] = _number(word, number)
    return _made(lambda: Budget(**fields))


def quotas_of(rates: Sequence[str], pools: Sequence[str], tasks_at_once: int | None) -> Quotas:
    """The quotas that these words give: `tool:send_mail=10/1m`, `core:tokens=1000000/1d`, `batch:tasks=8`.

    Raises `UsageError`.
    """
    found: dict[str, dict[str, Any]] = {}
    for word in pools:
        named, sign, value = word.partition("=")
        task_class, colon, what = named.partition(":")
        if not sign or not colon or what not in ("tokens", "calls", "tasks"):
            raise UsageError(f"{word!r} is not CLASS:tokens=N/SPAN, CLASS:calls=N/SPAN or CLASS:tasks=N")
        field, given = ("tasks_at_once", _number(word, value)) if what == "tasks" else (what, _rate(word, value))
        if field in found.setdefault(task_class, {}):
            raise UsageError(f"{named} is given twice")
        found[task_class][field] = given
    named_rates: dict[str, Rate] = {}
    for word in rates:
        name, _, value = word.rpartition("=")
        if name in named_rates:
            raise UsageError(f"{name} is given twice")
        named_rates[name] = _rate(word, value)
    made = {cast("TaskClass", name): _made(partial(Pool, **fields)) for name, fields in found.items()}
    return _made(lambda: Quotas(rates=named_rates, pools=made, tasks_at_once=tasks_at_once))


def quota_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that bound what all workers of a file use together."""
    options: list[Decorator] = [
        click.option(
            "--rate",
            "rates",
            metavar="NAME=N/SPAN",
            multiple=True,
            help="At most N calls of tool:NAME or requests to adapter:NAME in any SPAN (10/1m). Repeatable.",
        ),
        click.option(
            "--pool",
            "pools",
            metavar="CLASS:WHAT=N",
            multiple=True,
            help="What core, normal or batch tasks share: tokens=N/SPAN, calls=N/SPAN or tasks=N at once. Repeatable.",
        ),
        click.option(
            "--tasks-in-file", metavar="N", type=WholeType(1), help="At once, in all workers that say the same."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _rate(word: str, text: str) -> Rate:
    number, sign, span = text.partition("/")
    if not sign:
        raise UsageError(f"{word!r} is not N/SPAN, such as 10/1m")
    return _made(lambda: Rate(_number(word, number), float(SpanType().convert(span, None, None))))


def _number(word: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{word!r} needs a whole number, not {text!r}")
    if len(text) > _MAX_DIGITS:
        raise UsageError(f"{word!r:.100} needs a number of at most {_MAX_DIGITS} digits")
    return int(text)


def _made(make: Callable[[], T]) -> T:
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
