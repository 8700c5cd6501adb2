"""The account of a session that has a budget: what its log says that was used, card by card.

All of it is counted from events, so that no crash resets a counter, and no call of a plugin can.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from flightlog.core.changed import changed
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    BudgetGranted,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    Event,
    Move,
    RequestFailed,
    RequestSent,
    SessionOpened,
    SessionRepaired,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    TaskState,
    ToolCall,
)

DEFAULT_CARDS: Final[Mapping[str, int]] = MappingProxyType({"retries": 60, "subagents": 60})
"""The cards of a task that was given no others: what nobody meant to allow without end."""

DAY_US: Final = 86_400_000_000
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


@frozen(kw_only=True, slots=False)
class Account:
    """What may be used (`cards`) and what was (`used`), both by the name of the card.

    `asked` are the tokens that the open request is taken to cost, `asked_of` is its model, `summarises` says that it is
    for a summary; `lent` are those that children were given which are still at work. `warned` are the cards of which
    much is used, `moves` what was done about tokens that run out since they were granted; then requests are to have at
    most `context_tokens`, `smaller` is the model that serves, and the `put_off` sub-goals wait. `halt` is why the
    session pauses. `grants` counts grants, the newest is `granted_by` somebody, `grants_then` as many as there were
    when it paused.

    `counts_time` says that work goes on, `in_step` that a step is open; `active_us` is that of day `day` (days since
    1970), `step_us` that of the open step, both up to the row of `at_us`.
    """

    cards: Mapping[str, int] = DEFAULT_CARDS
    used: Mapping[str, int] = _NOTHING
    asked: int = 0
    asked_of: str = ""
    summarises: bool = False
    granted_by: str = ""
    lent: Mapping[str, int] = _NOTHING
    warned: frozenset[str] = frozenset()
    moves: tuple[Move, ...] = ()
    context_tokens: int | None = None
    smaller: str = ""
    put_off: tuple[str, ...] = ()
    halt: BudgetAlert | None = None
    grants: int = 0
    grants_then: int = 0
    counts_time: bool = False
    at_us: int = 0
    day: int = 0
    in_step: bool = False
    active_us: int = 0
    step_us: int = 0

    def used_of(self, card: str) -> int:
        """How much of `card` is used: tokens, counts, whole seconds."""
        match card:
            case "active_s":
                return self.active_us // 1_000_000
            case "step_s":
                return self.step_us // 1_000_000
            case _:
                return self.used.get(card, 0)

    def left_of(self, card: str) -> int | None:
        """How much of `card` is left, never below 0; None where it has no bound.

        Of tokens, that is without what children may still use.
        """
        if card not in self.cards:
            return None
        lent = sum(self.lent.values()) if card == "tokens" else 0
        return max(0, self.cards[card] - self.used_of(card) - lent)


EMPTY: Final = Account()


def at(account: Account, event: Event, at_us: int) -> Account:
    """`account` as of a row of this time: what was worked since the row before counts, unless nobody was there."""
    if not at_us:
        return account
    return passed(account, at_us, works=account.counts_time and not isinstance(event, (SessionOpened, SessionRepaired)))


def passed(account: Account, at_us: int, *, works: bool) -> Account:
    """`account` at this time, when somebody `works` since its last row, or nobody does."""
    day = at_us // DAY_US
    gone = max(0, at_us - account.at_us) if works else 0
    today_us = account.active_us if day == account.day else 0
    return changed(
        account, at_us=at_us, day=day, active_us=today_us + min(gone, at_us % DAY_US), step_us=account.step_us + gone
    )


def counted(account: Account, event: Event) -> Account:
    """`account` after `event`."""
    match event:
        case ContextBuilt():
            return changed(account, asked=event.tokens, asked_of=event.model)
        case RequestSent():
            return _requested(account)
        case CompactionStart(level="summarise"):
            asking = changed(account, asked=event.tokens_before, asked_of=event.model, summarises=True)
            return _requested(asking)
        case AssistantMessage():
            return _spent(account, event.charged)
        case RequestFailed():
            return _with(_spent(account, event.charged), retries=int(event.failure != "interrupted"))
        case CompactionEnd():
            return _spent(account, event.charged, summary=True)
        case ToolCall(resumed=""):
            return _with(account, calls=1, **{f"calls:{event.name}": 1})
        case SubagentSpawned():
            lent = MappingProxyType({**account.lent, event.child: event.tokens or 0})
            return _with(changed(account, lent=lent), subagents=1)
        case SubagentSettled():
            lent = MappingProxyType({child: lent for child, lent in account.lent.items() if child != event.child})
            return _with(changed(account, lent=lent), tokens=event.charged)
        case StepStart():
            used = MappingProxyType({**account.used, "step_tokens": 0})
            return changed(account, in_step=True, step_us=0, used=used)
        case StepEnd():
            return changed(account, in_step=False)
        case BudgetGranted():
            return _granted(account, event)
        case BudgetAlert(level="warning"):
            return changed(account, warned=account.warned | {event.card})
        case BudgetAlert(then="pauses"):
            return changed(account, halt=event)
        case BudgetDegraded():
            return changed(
                account,
                moves=(*account.moves, event.move),
                context_tokens=event.context_tokens or account.context_tokens,
                smaller=event.model or account.smaller,
                put_off=(*account.put_off, *event.put_off),
            )
        case TaskState():
            works = event.state in ("running", "recovering")
            comes_on = event.state == "running" and account.counts_time  # after a recovery, perhaps into a pause
            halt = None if works and not comes_on else account.halt
            return changed(account, counts_time=works, halt=halt, grants_then=account.grants)
        case SessionOpened() if account.summarises:  # whoever asked for it is dead, and what it cost was not told
            return _spent(account, account.asked, summary=True)
        case _:
            return account


def _spent(account: Account, tokens: int, *, summary: bool = False) -> Account:
    """`account` once the open request is settled, which has cost so much."""
    summaries = {"summary_tokens": tokens} if summary else {}
    return _with(changed(account, asked=0, summarises=False), tokens=tokens, step_tokens=tokens, **summaries)


def _requested(account: Account) -> Account:
    adapter = account.asked_of.partition(":")[0]
    return _with(account, requests=1, **{f"requests:{adapter}": 1})


def _with(account: Account, **more: int) -> Account:
    """`account` with so much more used."""
    used = {**account.used, **{card: account.used.get(card, 0) + count for card, count in more.items() if count}}
    return changed(account, used=MappingProxyType(used))


def _granted(account: Account, event: BudgetGranted) -> Account:
    cards = MappingProxyType({**account.cards, event.card: event.most})
    account = changed(
        account,
        cards=cards,
        granted_by=event.by,
        warned=account.warned - {event.card},
        halt=None,  # whatever it was for: it is looked at again, and a child knows no other new beginning
        grants=account.grants + 1,
    )
    if event.card != "tokens":
        return account
    return changed(account, moves=(), context_tokens=None, smaller="", put_off=())


def granted(account: Account | None) -> tuple[BudgetGranted, ...]:
    """The cards of `account` that it was given, as they are now."""
    cards = account.cards.items() if account else ()
    return tuple(BudgetGranted(card=card, most=most) for card, most in cards if DEFAULT_CARDS.get(card) != most)
