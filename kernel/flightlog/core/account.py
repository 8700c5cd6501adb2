"""The account of a session that has a budget: what its log says that was used, card by card.

All of it is counted from events, so that no crash resets a counter, and no call of a plugin can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from attrs import frozen

from flightlog.core.changed import changed
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetAlert,
    BudgetCharged,
    BudgetDegraded,
    BudgetGranted,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    Event,
    Lent,
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
    TurnEnd,
    TurnStart,
)

DEFAULT_CARDS: Final[Mapping[str, int]] = MappingProxyType({"retries": 60, "subagents": 60})
"""The cards of a task that was given no others: what nobody meant to allow without end."""

TIME_CARDS: Final = frozenset({"active_s", "step_s"})
"""The cards that are used up by the clock."""

STEP_CARDS: Final = frozenset({"step_tokens", "step_s"})
"""The cards that are counted anew in each step."""

DAY_US: Final = 86_400_000_000
_Counts = MappingProxyType[str, int]
"""Numbers by name. Not any mapping: joining two of these with `|` takes a third of the time."""

_NOTHING: Final[_Counts] = MappingProxyType({})
_NO_LOANS: Final[Mapping[str, tuple[Lent, ...]]] = MappingProxyType({})


@frozen(kw_only=True, slots=False)
class Account:
    """What may be used (`cards`) and what was (`used`), both by the name of the card.

    `asked` are the tokens that the open request is taken to cost, `asked_of` is its model, `summarises` says that it is
    for a summary; `lent` is what children were given which are still at work. `warned` are the cards of which it
    was said that much is used, today or in this step where they are counted by it; `moves` what was done about tokens
    that run out since they were granted; then requests are to have at most `context_tokens`, `smaller` is the model
    that serves, and the `put_off` sub-goals wait. `halt` is why the session pauses once its step ends. `grants` counts
    grants, the newest is `granted_by` somebody, `grants_then` as many as there were when it paused.

    `counts_time` says that work goes on, `in_turn` that a turn is open, `in_step` that a step is; `active_us` is that
    of day `day` (days since 1970), `step_us` that of the open step, both up to the row of `at_us`.
    """

    cards: Mapping[str, int] = DEFAULT_CARDS
    used: _Counts = _NOTHING
    asked: int = 0
    asked_of: str = ""
    summarises: bool = False
    granted_by: str = ""
    lent: Mapping[str, tuple[Lent, ...]] = _NO_LOANS
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
    in_turn: bool = False
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
        """How much of `card` is left, never below 0; None where it has no bound. Not what children may still use."""
        if card not in self.cards:
            return None
        return max(0, self.cards[card] - self.used_of(card) - self.lent_of(card))

    def lent_of(self, card: str) -> int:
        """How much of `card` children may use that are still at work."""
        return sum(loan.amount for loans in self.lent.values() for loan in loans if loan.card == card)


EMPTY: Final = Account()


def counted(account: Account, event: Event, at_us: int = 0) -> Account:
    """`account` after `event`, which stands in a row of this time; 0 where no time is to pass.

    What was worked since the row before counts, unless nobody was there.
    """
    account = _on_day_of(account, at_us) if at_us else account
    count = _COUNTS.get(type(event))
    changes = count(account, event) if count else {}
    if at_us:
        works = account.counts_time and type(event) not in _NOBODY_WAS_THERE
        changes = {**_passed(account, at_us, works=works), **changes}
    return changed(account, **changes) if changes else account


def passed(account: Account, at_us: int, *, works: bool) -> Account:
    """`account` at this time, when somebody `works` since its last row, or nobody does."""
    return changed(_on_day_of(account, at_us), **_passed(account, at_us, works=works))


def _on_day_of(account: Account, at_us: int) -> Account:
    """`account`, but what was said about another day's time is not said about that of this one."""
    if "active_s" not in account.warned or at_us // DAY_US == account.day:
        return account
    return changed(account, warned=account.warned - {"active_s"})


_Changes = dict[str, object]
"""What an event makes of some fields of the account. All that it changes is one copy: this runs for each row."""


def _passed(account: Account, at_us: int, *, works: bool) -> _Changes:
    day, of_day_us = divmod(at_us, DAY_US)
    gone = max(0, at_us - account.at_us) if works else 0
    today_us = account.active_us if day == account.day else 0
    return {
        "at_us": at_us,
        "day": day,
        "active_us": today_us + min(gone, of_day_us),
        "step_us": account.step_us + gone,
    }


def _used(account: Account, **more: int) -> _Counts:
    """What is used with so much more of these cards."""
    used = account.used
    return MappingProxyType(used | {card: used.get(card, 0) + count for card, count in more.items() if count})


def _requested(account: Account, model: str) -> _Counts:
    return _used(account, requests=1, **{f"requests:{model.partition(':')[0]}": 1})


def _spent(account: Account, tokens: int, **more: int) -> _Changes:
    """What follows once the open request is settled, which has cost so much."""
    used = _used(account, tokens=tokens, step_tokens=tokens, **more)
    return {"asked": 0, "summarises": False, "used": used}


def _built(account: Account, event: ContextBuilt) -> _Changes:
    return {"asked": event.tokens, "asked_of": event.model}


def _sent(account: Account, event: RequestSent) -> _Changes:
    return {"used": _requested(account, account.asked_of)}


def _compaction_start(account: Account, event: CompactionStart) -> _Changes:
    if event.level != "summarise":
        return {}
    asking: _Changes = {"asked": event.tokens_before, "asked_of": event.model, "summarises": True}
    return {**asking, "used": _requested(account, event.model)}


def _message(account: Account, event: AssistantMessage) -> _Changes:
    return _spent(account, event.charged)


def _failed(account: Account, event: RequestFailed) -> _Changes:
    return _spent(account, event.charged, retries=int(event.failure != "interrupted"))


def _compaction_end(account: Account, event: CompactionEnd) -> _Changes:
    return _spent(account, event.charged, summary_tokens=event.charged)


def _tool_call(account: Account, event: ToolCall) -> _Changes:
    return {} if event.resumed else {"used": _used(account, calls=1, **{f"calls:{event.name}": 1})}


def lent_for(task: SubagentSpawned) -> tuple[Lent, ...]:
    """What the child of `task` may use of each card."""
    return (*(() if task.tokens is None else (Lent(card="tokens", amount=task.tokens),)), *task.lent)


def _spawned(account: Account, event: SubagentSpawned) -> _Changes:
    lent = MappingProxyType({**account.lent, event.child: lent_for(event)})
    return {"lent": lent, "used": _used(account, subagents=1)}


def _settled(account: Account, event: SubagentSettled) -> _Changes:
    lent = MappingProxyType({child: lent for child, lent in account.lent.items() if child != event.child})
    return {"lent": lent, "used": _used(account, tokens=event.charged)}


def _charged(account: Account, event: BudgetCharged) -> _Changes:
    return {"used": _used(account, **{event.card: event.amount})}


def _turn_start(account: Account, event: TurnStart) -> _Changes:
    return {"in_turn": True}


def _turn_end(account: Account, event: TurnEnd) -> _Changes:
    return {"in_turn": False}


def _step_start(account: Account, event: StepStart) -> _Changes:
    used = MappingProxyType(account.used | {"step_tokens": 0})
    return {"in_step": True, "step_us": 0, "used": used, "warned": account.warned - STEP_CARDS}


def _step_end(account: Account, event: StepEnd) -> _Changes:
    return {"in_step": False}


def _granted(account: Account, event: BudgetGranted) -> _Changes:
    changes: _Changes = {
        "cards": MappingProxyType({**account.cards, event.card: event.most}),
        "granted_by": event.by,
        "warned": account.warned - {event.card},
        "halt": None,  # whatever it was for: it is looked at again, and a child knows no other new beginning
        "grants": account.grants + 1,
    }
    if event.card == "tokens":
        changes |= {"moves": (), "context_tokens": None, "smaller": "", "put_off": ()}
    return changes


def _alert(account: Account, event: BudgetAlert) -> _Changes:
    if event.level == "warning":
        return {"warned": account.warned | {event.card}}
    return {"halt": event} if event.then == "pauses" else {}


def _degraded(account: Account, event: BudgetDegraded) -> _Changes:
    return {
        "moves": (*account.moves, event.move),
        "context_tokens": event.context_tokens or account.context_tokens,
        "smaller": event.model or account.smaller,
        "put_off": (*account.put_off, *event.put_off),
    }


def _task_state(account: Account, event: TaskState) -> _Changes:
    works = event.state in ("running", "recovering")
    comes_on = event.state == "running" and account.counts_time  # after a recovery, perhaps into a pause
    halt = None if works and not comes_on and not _is_to_pause(account) else account.halt
    return {"counts_time": works, "halt": halt, "grants_then": account.grants}


def _is_to_pause(account: Account) -> bool:
    """Whether it has still to pause for what was used up, since the turn of that was only cut off.

    A call that was refused has its answer, so nothing would look at its card again. Time is looked at all the time, and
    there is more of it on another day.
    """
    return account.in_turn and account.halt is not None and account.halt.card not in TIME_CARDS


def _opened(account: Account, event: SessionOpened) -> _Changes:
    if not account.summarises:
        return {}
    # Whoever asked for the summary is dead, and what it cost was not told.
    return _spent(account, account.asked, summary_tokens=account.asked)


_NOBODY_WAS_THERE: Final = frozenset({SessionOpened, SessionRepaired})
_COUNTS: Final[dict[type, Callable[[Account, Any], _Changes]]] = {
    ContextBuilt: _built,
    RequestSent: _sent,
    CompactionStart: _compaction_start,
    AssistantMessage: _message,
    RequestFailed: _failed,
    CompactionEnd: _compaction_end,
    ToolCall: _tool_call,
    SubagentSpawned: _spawned,
    SubagentSettled: _settled,
    TurnStart: _turn_start,
    TurnEnd: _turn_end,
    StepStart: _step_start,
    StepEnd: _step_end,
    BudgetGranted: _granted,
    BudgetCharged: _charged,
    BudgetAlert: _alert,
    BudgetDegraded: _degraded,
    TaskState: _task_state,
    SessionOpened: _opened,
}


def granted(account: Account | None) -> tuple[BudgetGranted, ...]:
    """The cards of `account` that it was given, as they are now."""
    cards = account.cards.items() if account else ()
    return tuple(BudgetGranted(card=card, most=most) for card, most in cards if DEFAULT_CARDS.get(card) != most)
