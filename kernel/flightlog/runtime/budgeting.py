"""Keeping a session within its budget: before each request, what `core/budget.py` says is done."""

from __future__ import annotations

from attrs import evolve, frozen

from flightlog.core.budget import QUOTA, answer_room, before_request, charge, pausing, told_of
from flightlog.core.fitting import cost
from flightlog.runtime.briefing import Briefing
from flightlog.runtime.compacting import Compacting
from flightlog.runtime.journal import Journal
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    ContextBuilt,
    Head,
    TurnEnd,
)


@frozen(kw_only=True)
class Admitted:
    """The request may be made; `built` is what it has, and its answer may have `room` tokens, None for any number."""

    built: ContextBuilt | None = None
    room: int | None = None


@frozen
class OnceMore:
    """Something was done so that the session makes do with less: look again."""


@frozen
class Budgeting:
    """Admits the requests of one session."""

    _journal: Journal
    _around: Surroundings
    _briefing: Briefing
    _compacting: Compacting

    async def admit(self, attempt: int, adapter: Adapter, head: Head) -> Admitted | OnceMore | TurnEnd:
        """Whether the request may be made as it stands; how the turn ends if nothing lets it."""
        journal, state = self._journal, self._journal.state
        account, step = state.account, state.step
        assert step is not None, "requests are made inside a step"
        if account is None:
            return Admitted()
        tokens = self._compacting.measured(adapter, head)
        submitted = state.task.submitted if state.task else None
        if submitted and not self._around.registry.serves(submitted.smaller_model):
            submitted = evolve(submitted, smaller_model="")
        again = bool(step.failures) and step.phase == "failed"
        now_us = journal.clock.now_us()
        match before_request(account, submitted, tokens, state.model, now_us, again=again):
            case BudgetDegraded() as move:
                await journal.append(move, *told_of(move, journal.clock.new_id()))
                if move.model:
                    await self._briefing.serve()
                return OnceMore()
            case BudgetAlert() as alert:
                return await self.pause(alert)
            case None:
                return Admitted(
                    built=ContextBuilt(
                        attempt=attempt,
                        model=state.model,
                        tokens=tokens,
                        head_tokens=self._compacting.head_tokens,
                        messages=len(journal.history),
                        most=self._compacting.most(adapter, head),
                    ),
                    room=answer_room(account, tokens),
                )

    async def pause(self, alert: BudgetAlert) -> TurnEnd:
        """Say why the session pauses; returns how its turn ends."""
        await self._journal.append(*pausing(alert))
        return TurnEnd(reason="paused", cause=QUOTA, message=alert.message)

    def charge(self, answer: AssistantMessage) -> int:
        """What `answer` counts at least; 0 where nobody counts."""
        account = self._journal.state.account
        if account is None:
            return 0
        return charge(account.asked, cost(answer), answer.counted)
