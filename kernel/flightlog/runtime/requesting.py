"""One attempt at a request: brief, prove, log, send, and say in events how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from flightlog.core.budget import ANSWER_MIN_TOKENS, CONTEXT, pausing, tightest
from flightlog.core.history import Prefix
from flightlog.core.state import State
from flightlog.runtime.briefing import Briefing
from flightlog.runtime.budgeting import Admitted, Budgeting, OnceMore
from flightlog.runtime.closing import close_turn
from flightlog.runtime.compacting import OVERFLOW, Compacting
from flightlog.runtime.gate import alert_of, patience_s
from flightlog.runtime.journal import Journal
from flightlog.runtime.metering import Meter
from flightlog.runtime.model_call import DeltaRecorder, call_model
from flightlog.runtime.proving import Proof
from flightlog.runtime.request_hooks import RequestHooks
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import BudgetAlert, Event, Head, RequestFailed, RequestRetry, RequestSent, TurnEnd
from flightlog_hookspecs.hooks import Failure, Switch

Ending = tuple[Sequence[Event], Sequence[int]]
"""How an attempt ended, not yet in the log, and the times of the first events; empty when none was made."""


class Requests:
    """Makes the requests of one session."""

    def __init__(self, journal: Journal, around: Surroundings, briefing: Briefing) -> None:
        self._journal = journal
        self._around = around
        self._briefing = briefing
        self._proof = Proof(journal)
        self._hooks = RequestHooks(journal, around)
        self._compacting = Compacting(journal, around, self._proof, self._hooks)
        self._budgeting = Budgeting(journal, around, briefing, self._compacting)

    async def make(self, attempt: int) -> Ending:
        """Make attempt `attempt`. When a guard forbids it, the turn is closed instead."""
        journal = self._journal
        veto = await self._briefing.prepare()
        if veto:
            await close_turn(journal, TurnEnd(reason="blocked", message=veto))
            return (), ()
        while True:
            header = journal.state.header
            assert header is not None, "there is one by the first attempt"
            registered, _ = self._around.registry.adapter_of(journal.state.model)
            with registered.plugin.running():
                match await self._admitted(attempt, registered.item, header.head):
                    case Admitted() as admitted:
                        return await self._attempt(attempt, registered.item, header.head, admitted)
                    case TurnEnd() as end:
                        await close_turn(journal, end)
                        return (), ()
                    case OnceMore():
                        pass

    async def _admitted(self, attempt: int, adapter: Adapter, head: Head) -> Admitted | OnceMore | TurnEnd:
        """Whether the request fits into the model's window and the session's budget."""
        match await self._fit(adapter, head):
            case "":
                return await self._budgeting.admit(attempt, adapter, head)
            case BudgetAlert() as alert:
                return await self._budgeting.pause(alert)
            case why if self._journal.state.task is None:
                return TurnEnd(reason="error", code=OVERFLOW, message=why)
            case why:
                return TurnEnd(reason="paused", cause=CONTEXT, message=why)

    async def _fit(self, adapter: Adapter, head: Head) -> str | BudgetAlert:
        """Make the context short enough, and tell the model again what it was told where that is gone now."""
        history = self._journal.history
        while True:
            rewritten_at = history.rewritten_at
            if why := await self._compacting.fit(adapter, head):
                return why
            if history.rewritten_at == rewritten_at:
                return ""
            await self._briefing.remind()

    async def _attempt(self, attempt: int, adapter: Adapter, head: Head, admitted: Admitted) -> Ending:
        """Prove the request, log it, send it."""
        journal = self._journal
        encoded = await self._proof.encoded(adapter, head)
        if veto := await self._hooks.veto(attempt, head, Prefix(encoded.messages)):
            await close_turn(journal, TurnEnd(reason="blocked", message=veto))
            return (), ()
        sent = RequestSent(
            attempt=attempt,
            header_seq=journal.state.header_seq,
            messages=len(encoded.messages),
            sha256=encoded.digest,
        )
        if end := await self._through_gate(admitted, sent):
            await close_turn(journal, end)
            return (), ()
        journal.store.check_alive(in_place=False)  # another session's fault may have stopped it since
        journal.on_boundary("request", journal.session, journal.seq)
        request = Request(head=head, messages=Prefix(encoded.messages), fragments=Prefix(encoded.fragments))
        price = self._around.registry.price_of(journal.state.model)
        recorder = DeltaRecorder(journal, attempt, self._around.limits.delta_flush_ms)
        meter = Meter(admitted.room)
        answer = await call_model(journal, adapter, request, recorder, self._around.limits, meter)
        ending: list[Event]
        if meter.full and isinstance(answer, ProviderError) and answer.kind == "length":
            ending = self._cut_off(attempt, answer, meter)
        elif isinstance(answer, ProviderError):
            if self._around.hooks.any_at("on_request_error"):
                await recorder.flush()  # asking may take a while, and be cut off
            ending = await self._failure(attempt, journal.state.model, answer, meter)
        else:
            ending = [evolve(answer, price=price, charge=self._budgeting.charge(answer))]
        deltas, times_us = recorder.drain()
        return (*deltas, *ending), times_us

    async def _through_gate(self, admitted: Admitted, sent: RequestSent) -> TurnEnd | None:
        """Log that the request is sent, once quotas let it; returns how the turn ends if they do not."""
        state, built = self._journal.state, [admitted.built] if admitted.built else []
        tokens = admitted.built.tokens + ANSWER_MIN_TOKENS if admitted.built else 0
        gate = self._around.gate
        demands = gate.for_request(self._journal.key, state.model.partition(":")[0], tokens)
        async with gate.through(self._journal.key, demands, patience_s=patience_s(state)) as full:
            if full is None:
                await self._journal.append(*built, sent, barrier=True)
                return None
        return await self._budgeting.pause(alert_of(full, then="pauses"))

    def _cut_off(self, attempt: int, error: ProviderError, meter: Meter) -> list[Event]:
        """That the budget had no room for more of the answer: the session pauses."""
        account = self._journal.state.account
        assert account is not None, "without a budget there is room for everything"
        charged = meter.charge(account.asked)
        failed = RequestFailed(
            attempt=attempt, failure=error.kind, message=error.message, retryable=False, charged=charged
        )
        return [failed, *pausing(tightest(account, charged, self._journal.clock.now_us()))]

    async def _failure(self, attempt: int, model: str, error: ProviderError, meter: Meter) -> list[Event]:
        """That the attempt failed, and what is done about it: nothing, unless a hook has an opinion."""
        state, wish_s = self._journal.state, error.retry_after_s
        assert state.step is not None, "requests are made inside a step"
        said = self._around.redacting.text(error.message)
        left = max(0, self._around.limits.attempts_per_step - (attempt - state.step.cut_off))
        failures = (*state.step.failures, Failure(model=model, kind=error.kind))
        advice = await self._hooks.advice(attempt, error, failures, left)
        message = f"{said}; the provider asks to wait {wish_s:g} s" if wish_s else said
        account = self._journal.state.account
        charged = meter.charge(account.asked) if account else 0
        failed = RequestFailed(
            attempt=attempt, failure=error.kind, message=message, retryable=error.retryable, charged=charged
        )
        other = advice.answer.model if isinstance(advice.answer, Switch) else ""
        if error.kind == OVERFLOW and not other:  # as it is, it will not fit the next time either
            shorter = [RequestRetry(attempt=attempt + 1, delay_ms=0)] if left and self._may_shorten(state) else []
            return [*advice.faults, failed, *shorter]
        if advice.answer is None or not left:
            return [*advice.faults, failed]
        retry = RequestRetry(attempt=attempt + 1, delay_ms=round(advice.answer.after_s * 1000), model=other)
        return [*advice.faults, failed, retry]

    def _may_shorten(self, state: State) -> bool:
        """Whether a request that was too long is made once more with a shorter context: once a step."""
        assert state.step is not None, "requests are made inside a step"
        before = any(failure.kind == OVERFLOW for failure in state.step.failures)
        return self._around.registry.compactor is not None and not before
