"""The rules of budgets: when something would exceed a card, and what is done about it.

| card                           | asked                         | exceeded                                        |
|--------------------------------|-------------------------------|-------------------------------------------------|
| tokens                         | before each request           | see below                                       |
| step_tokens                    | before each request           | the context is made shorter, the session pauses |
| requests(:ADAPTER), retries    | before each request           | the session pauses                              |
| summary_tokens                 | before a summary is asked for | none is asked for; results are shortened        |
| calls(:TOOL)                   | before a body starts          | the call is shed; if it is core, it pauses, too |
| subagents                      | as a child is given a task    | the call fails, and the session pauses          |
| tools_at_once                  | before a body starts          | the call waits for another one's end            |
| active_s, step_s               | at any time                   | the session pauses until tomorrow, or a minute  |

As tokens run out, a task makes do with less before it pauses: the moves of its chain, one after the other, the first
once `FIRST_MOVE` of the card is used, or as soon as the next request needs more than is left. A grant takes them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve

from flightlog.core.account import DAY_US, STEP_CARDS, TIME_CARDS, Account, passed
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import (
    BudgetAlert,
    BudgetDegraded,
    Degradation,
    TaskSubmitted,
    UserMessage,
)

QUOTA: Final = "quota"
"""The cause of a turn and a task that are paused since a card is used up."""

CONTEXT: Final = "context"
"""The cause of a task that is paused since its context does not fit: maybe no card had room for a summary."""

WARN_RATIO: Final = 0.8
FIRST_MOVE: Final = 0.8
LAST_MOVE: Final = 0.95
"""Between these parts of the tokens the moves of a chain are spread."""

ANSWER_MIN_TOKENS: Final = 64
"""A request is made only if so many tokens are left for its answer."""

SUMMARY_AIM: Final = 1 / 3
"""To such a part of a step's card a context is summarised, once it is half as much again.

Any later, and the step could pay for the summary no more, or not for the request after it.
"""

STEP_FREEZE_US: Final = 60_000_000
"""A task whose step took too long goes on after so many microseconds."""

CHAIN: Final[tuple[Degradation, ...]] = ("compress",)
"""What is done in the session of a child, which has no task."""

ONE_CALL: Final = STEP_CARDS | {"tools_at_once"}
"""Cards that are full again with each step, so that what is used of them is nothing to be told afterwards."""

NAMES: Final = frozenset(
    {
        *ONE_CALL,
        "tokens",
        "summary_tokens",
        "requests",
        "calls",
        "retries",
        "subagents",
        "active_s",
    }
)
"""The cards; `requests` and `calls` also with `:` and a name behind them."""


def is_card(name: str) -> bool:
    """Whether there is such a card."""
    kind, colon, rest = name.partition(":")
    return name in NAMES if not colon else kind in ("requests", "calls") and bool(rest)


def missing(cards: Iterable[str], has: Iterable[str]) -> str:
    """Why nothing can be granted of `cards` to a task that has others; "" when it has all of them."""
    there = sorted(has)
    lacks = next((card for card in cards if card not in there), "")
    return f"this task has no card {lacks!r}, so it is not bounded there; it has {', '.join(there)}" if lacks else ""


def is_lasting(card: str) -> bool:
    """Whether a task cannot go on without `card` until more is granted."""
    return card.partition(":")[0] in ("tokens", "requests")


def warnings(account: Account | None) -> tuple[BudgetAlert, ...]:
    """The cards of which much is used, unless that was said before.

    Of `tools_at_once` nothing is ever used: further calls only wait.
    """
    if account is None:
        return ()
    return tuple(
        BudgetAlert(card=card, used=account.used_of(card), most=most, level="warning")
        for card, most in account.cards.items()
        if card not in account.warned and account.used_of(card) >= WARN_RATIO * most > 0
    )


def warnings_of_time(account: Account | None, now_us: int) -> tuple[BudgetAlert, ...]:
    """Those about time as of now: a body may run until all of it is gone, and no step ends before."""
    if account is None or not account.counts_time:
        return ()
    runs = {"active_s", "step_s"} if account.in_step else {"active_s"}
    return tuple(alert for alert in warnings(passed(account, now_us, works=True)) if alert.card in runs)


def before_request(
    account: Account, task: TaskSubmitted | None, tokens: int, model: str, now_us: int, *, again: bool
) -> BudgetDegraded | BudgetAlert | None:
    """What is to be done before a request of about so many tokens is made to `model`; None when it may be.

    `again` says that the attempt before it failed. An alert is why the session pauses.
    """
    for card in (*_request_cards(model), *(["retries"] if again else [])):
        if account.left_of(card) == 0:
            return paused(account, card, now_us)
    step_left, need = account.left_of("step_tokens"), tokens + ANSWER_MIN_TOKENS
    if step_left is not None and need > step_left:
        alert = paused(account, "step_tokens", now_us, f"the next request needs {need} tokens")
        fits_another_step = need <= account.cards["step_tokens"]
        return alert if fits_another_step else evolve(alert, resume_at_us=None)
    by_now = passed(account, now_us, works=account.counts_time)
    if by_now.left_of("active_s") == 0:
        return paused(by_now, "active_s", now_us)
    return _about_tokens(account, task, tokens, model, now_us)


def _request_cards(model: str) -> tuple[str, str]:
    """The cards that count requests to `model`."""
    return "requests", f"requests:{model.partition(':')[0]}"


def _about_tokens(
    account: Account, task: TaskSubmitted | None, tokens: int, model: str, now_us: int
) -> BudgetDegraded | BudgetAlert | None:
    left, need = account.left_of("tokens"), tokens + ANSWER_MIN_TOKENS
    if left is None:
        return None
    most, used = account.cards["tokens"], account.used_of("tokens")
    chain = _chain(task, model)
    ahead = [(index, move) for index, move in enumerate(chain) if move not in account.moves]
    short = f"the next request needs about {need} tokens, and {left} of {most} are left" if need > left else ""
    if short and any(move == "compress" for _, move in ahead):  # the one move that makes this request cheaper
        return _degraded("compress", short, task, tokens)
    if ahead and not short:
        index, move = ahead[0]
        share = FIRST_MOVE + (LAST_MOVE - FIRST_MOVE) * index / len(chain)
        if used >= share * most:
            return _degraded(move, f"{used} of {most} tokens are used", task, tokens)
    return paused(account, "tokens", now_us, short) if short else None


def _chain(task: TaskSubmitted | None, model: str) -> tuple[Degradation, ...]:
    """The moves there are for this task."""
    if task is None:
        return CHAIN
    return tuple(
        move
        for move in task.degradation
        if move != "smaller_model" or (task.smaller_model and task.smaller_model != model)
    )


def _degraded(move: Degradation, reason: str, task: TaskSubmitted | None, tokens: int) -> BudgetDegraded:
    match move:
        case "compress":
            return BudgetDegraded(move=move, reason=reason, context_tokens=max(1, tokens // 2))
        case "shrink":
            put_off = tuple(goal.text for goal in task.sub_goals if not goal.core) if task else ()
            return BudgetDegraded(move=move, reason=reason, put_off=put_off)
        case "smaller_model":
            return BudgetDegraded(move=move, reason=reason, model=task.smaller_model if task else "")


def told_of(move: BudgetDegraded, message_id: str) -> tuple[UserMessage, ...]:
    """What the model is told of a move: only that its goal is smaller now."""
    if move.move != "shrink":
        return ()
    words = f"The budget of this task is nearly used up ({move.reason}). Deliver the main result now, in short."
    if move.put_off:
        words += " Leave out for now, until there is more:\n" + "\n".join(f"- {text}" for text in move.put_off)
    return (UserMessage(message_id=message_id, content=text_blocks(words), source="kernel"),)


def spillover(account: Account) -> str:
    """What the model is told of the sub-goals that were put off, once more is granted; "" when there are none."""
    if not account.put_off:
        return ""
    return "There is budget again. Now do what was put off:\n" + "\n".join(f"- {text}" for text in account.put_off)


def paused(account: Account, card: str, now_us: int, why: str = "") -> BudgetAlert:
    """That the session pauses since `card` is used up."""
    most, used = account.cards[card], account.used_of(card)
    resume_at_us = None
    if card == "active_s":
        resume_at_us = (now_us // DAY_US + 1) * DAY_US
    elif card in ("step_s", "step_tokens"):
        resume_at_us = now_us + STEP_FREEZE_US
    message = f"{card}: {used} of {most} are used{_lent(account, card)}" + (f", and {why}" if why else "")
    return BudgetAlert(
        card=card,
        used=used,
        most=most,
        level="exceeded",
        then="pauses",
        message=message,
        resume_at_us=resume_at_us,
    )


def _lent(account: Account, card: str) -> str:
    return f" or lent to children ({lent})" if (lent := account.lent_of(card)) else ""


def pausing(alert: BudgetAlert) -> tuple[BudgetDegraded | BudgetAlert, ...]:
    """What is written as the session pauses: for want of tokens, that is the last move of the chain."""
    return (BudgetDegraded(move="pause", reason=alert.message), alert) if alert.card == "tokens" else (alert,)


def tightest(account: Account, charged: int, now_us: int) -> BudgetAlert:
    """That the session pauses since an answer that counts so much was longer than a card allows."""
    card = min(
        (card for card in ("tokens", "step_tokens") if card in account.cards),
        key=lambda card: account.left_of(card) or 0,
    )
    return paused(account, card, now_us, f"an answer was cut off after {charged} more")


def short_for_summary(account: Account | None, tokens: int, model: str) -> str:
    """The card that keeps `model` from being asked for a summary with a request of about so many tokens, "" for none.

    It has to leave enough for a request with what it makes of them, or it would only bring the end nearer.
    """
    if account is None:
        return ""
    alone = tokens + ANSWER_MIN_TOKENS
    needs = {"summary_tokens": alone, "step_tokens": alone + tokens // 2, "tokens": alone + tokens // 2}
    needs |= dict.fromkeys(_request_cards(model), 2)
    short = (card for card, need in needs.items() if (left := account.left_of(card)) is not None and need > left)
    return next(short, "")


def step_room(account: Account | None) -> int | None:
    """How many tokens a request may have that fits into a step at all, with its answer; None for any number.

    What fits only into another step waits for that, and nothing is lost by it.
    """
    most = account.cards.get("step_tokens") if account else None
    return None if most is None else max(0, most - ANSWER_MIN_TOKENS)


def step_wish(account: Account) -> int | None:
    """How many tokens a context is wanted to have where a step also has to pay for its summary; None for any number."""
    most = account.cards.get("step_tokens")
    return None if most is None else int(most * SUMMARY_AIM)


def answer_room(account: Account | None, tokens: int, *, summary: bool = False) -> int | None:
    """How many tokens the answer to a request of about so many may have; None for any number."""
    if account is None:
        return None
    cards = ("tokens", "step_tokens", *(("summary_tokens",) if summary else ()))
    left = [left - tokens for card in cards if (left := account.left_of(card)) is not None]
    return max(0, min(left)) if left else None


def calls_left(account: Account, tool: str, about_to_start: Mapping[str, int]) -> tuple[str, int] | None:
    """The card that lets the fewest calls of `tool` start, and how many those are; None for any number.

    `about_to_start` has those that are to start before it, by card.
    """
    cards = ("calls", f"calls:{tool}")
    left = [(left - about_to_start.get(card, 0), card) for card in cards if (left := account.left_of(card)) is not None]
    return min(left)[::-1] if left else None


def shed(account: Account, card: str, *, core: bool) -> BudgetAlert:
    """That a call is not started since `card` is used up. The session pauses for one that it cannot do without."""
    most = account.cards[card]
    return BudgetAlert(
        card=card,
        used=account.used_of(card),
        most=most,
        level="exceeded",
        then="pauses" if core else "shed",
        message=f"{card}: all {most} are used{_lent(account, card)}",
    )


def time_left_us(account: Account, now_us: int) -> tuple[str, int] | None:
    """The card of time that is used up first, and in how many microseconds of work; None when there is none."""
    account = passed(account, now_us, works=account.counts_time)
    left = [
        (account.cards[card] * 1_000_000 - used, card)
        for card, used in (("active_s", account.active_us), ("step_s", account.step_us))
        if card in account.cards and (card == "active_s" or account.in_step)
    ]
    return min(left)[::-1] if left else None


def alert_of_time(account: Account | None, card: str, now_us: int) -> tuple[BudgetAlert, ...]:
    """That the session pauses since its time is used up by now, unless that was said.

    Said of another card, it pauses at the end of its step, for which there is no time any more.
    """
    if account is None or (account.halt is not None and account.halt.card in TIME_CARDS):
        return ()
    by_now = passed(account, now_us, works=account.counts_time)
    return (paused(by_now, card, now_us),) if by_now.left_of(card) == 0 else ()


def charge(asked: int, answer: int, counted: int) -> int:
    """What a request of about `asked` tokens and an answer of about `answer` count at least.

    A provider that counts nothing is not believed, nor one that counts less than half: it may be broken. One that
    counts more is.
    """
    return asked + answer if counted == 0 else (asked + answer) // 2


def no_child(account: Account | None, now_us: int) -> BudgetAlert | None:
    """That the session pauses since it has nothing for one more child; None when it has."""
    used_up = [card for card in ("subagents", "tokens", "requests") if account and account.left_of(card) == 0]
    return paused(account, used_up[0], now_us) if account and used_up else None
