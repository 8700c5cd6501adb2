"""What children are lent of a budget: as much as they may use for a task, and charged what they did as it settles.

So whatever a task may do, it does not do more with children, nor they with theirs. What was lent and is not used
comes back. Retries and children of its own are no loan: each child has bounds for them, so that many can work at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from flightlog.core.account import Account, lent_for
from flightlog.core.state import State
from flightlog_hookspecs.events import (
    BudgetCharged,
    BudgetGranted,
    Lent,
    SubagentSettled,
    SubagentSpawned,
    TurnEndReason,
)

_LENT: Final = frozenset({"requests", "calls"})
"""The cards, also with a name behind them, of which a child is lent a part, beside the tokens."""

_FEWER: Final = 8
"""A child may have so many times fewer children than its parent."""


def allowance(account: Account | None) -> int | None:
    """What a child may use: half of what is left, so that any number of them have less than all of it."""
    left = account.left_of("tokens") if account else None
    return None if left is None else left // 2


def loans(state: State) -> tuple[Lent, ...]:
    """What a child may use of the cards that count requests and calls.

    An equal share with the other calls of the step that may still give a child a task, and with the session itself,
    rounded up: of one, the first child has it.
    """
    if state.account is None:
        return ()
    calls = state.step.unanswered if state.step else ()
    sharers = 1 + sum(not (call.started and call.started.invocation_id in state.assigned) for call in calls)
    left = {card: state.account.left_of(card) or 0 for card in state.account.cards if card.partition(":")[0] in _LENT}
    return tuple(Lent(card=card, amount=-(-of // sharers)) for card, of in left.items())


def granting(child: State, task: SubagentSpawned, parent: State) -> tuple[BudgetGranted, ...]:
    """What `task` lets its child use, unless the child's log has it: on top of what earlier tasks have used."""
    account = child.account
    if parent.account is None or (account is not None and account.granted_by == task.invocation_id):
        return ()
    cards = parent.account.cards
    own = (
        Lent(card="retries", amount=cards["retries"]),
        Lent(card="subagents", amount=cards["subagents"] // _FEWER),
    )
    return tuple(
        BudgetGranted(
            card=loan.card,
            most=(account.used_of(loan.card) if account else 0) + loan.amount,
            by=task.invocation_id,
        )
        for loan in (*lent_for(task), *own)
    )


@frozen
class Settlement:
    """What came of a task, and what its child has used of the cards that it was lent a part of."""

    settled: SubagentSettled
    charged: tuple[BudgetCharged, ...] = ()

    @property
    def events(self) -> tuple[BudgetCharged | SubagentSettled, ...]:
        """It as it stands in the log."""
        return *self.charged, self.settled


def settlement(task: SubagentSpawned, reason: TurnEndReason, result: str, child: State) -> Settlement:
    """That `task` came to this, with what its child has used for it."""
    account = child.account
    if account is None or account.granted_by != task.invocation_id:
        return _settled(task, reason, result, {})
    used = {
        loan.card: account.used_of(loan.card) - (account.cards[loan.card] - loan.amount)
        for loan in lent_for(task)
        if loan.card in account.cards
    }
    return _settled(task, reason, result, used)


def unknown(task: SubagentSpawned, reason: TurnEndReason, result: str = "") -> Settlement:
    """That `task` came to this, and nobody knows what was used for it: that counts as all that was given."""
    return _settled(task, reason, result, {loan.card: loan.amount for loan in lent_for(task)})


def _settled(task: SubagentSpawned, reason: TurnEndReason, result: str, used: Mapping[str, int]) -> Settlement:
    spent = {card: amount for card, amount in used.items() if amount > 0}
    tokens = spent.pop("tokens", 0)
    id = task.invocation_id
    return Settlement(
        SubagentSettled(child=task.child, invocation_id=id, reason=reason, result=result, charged=tokens),
        tuple(BudgetCharged(card=card, amount=amount, invocation_id=id) for card, amount in spent.items()),
    )
