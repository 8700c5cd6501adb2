"""One attempt at a request: brief, prove, log, send, and say in events how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from flightlog.core.history import Prefix
from flightlog.core.state import State
from flightlog.runtime.briefing import Briefing
from flightlog.runtime.closing import close_turn
from flightlog.runtime.compacting import OVERFLOW, PAUSED, Compacting
from flightlog.runtime.journal import Journal
from flightlog.runtime.model_call import DeltaRecorder, call_model
from flightlog.runtime.proving import Proof
from flightlog.runtime.request_hooks import RequestHooks
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import Event, Head, RequestFailed, RequestRetry, RequestSent, TurnEnd
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

    async def make(self, attempt: int) -> Ending:
        """Make attempt `attempt`. When a guard forbids it, the turn is closed instead."""
        journal = self._journal
        veto = await self._briefing.prepare()
        if veto:
            await close_turn(journal, TurnEnd(reason="blocked", message=veto))
            return (), ()
        state = journal.state
        assert state.header is not None, "there is one by the first attempt"
        registered, _ = self._around.registry.adapter_of(state.model)
        with registered.plugin.running():
            if why := await self._fit(registered.item, state.header.head):
                end = TurnEnd(reason="error", code=OVERFLOW, message=why)
                if state.task is not None:
                    end = TurnEnd(reason="paused", cause=PAUSED, message=why)
                await close_turn(journal, end)
                return (), ()
            return await self._attempt(attempt, registered.item, state.header.head)

    async def _fit(self, adapter: Adapter, head: Head) -> str:
        """Make the context short enough, and tell the model again what it was told where that is gone now."""
        history = self._journal.history
        while True:
            rewritten_at = history.rewritten_at
            if why := await self._compacting.fit(adapter, head):
                return why
            if history.rewritten_at == rewritten_at:
                return ""
            await self._briefing.remind()

    async def _attempt(self, attempt: int, adapter: Adapter, head: Head) -> Ending:
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
        await journal.append(sent, barrier=True)
        journal.store.check_alive(in_place=False)  # another session's fault may have stopped it since
        journal.on_boundary("request", journal.session, journal.seq)
        request = Request(head=head, messages=Prefix(encoded.messages), fragments=Prefix(encoded.fragments))
        price = self._around.registry.price_of(journal.state.model)
        recorder = DeltaRecorder(journal, attempt, self._around.limits.delta_flush_ms)
        answer = await call_model(journal, adapter, request, recorder, self._around.limits)
        ending: list[Event]
        if isinstance(answer, ProviderError):
            if self._around.hooks.any_at("on_request_error"):
                await recorder.flush()  # asking may take a while, and be cut off
            ending = await self._failure(attempt, journal.state.model, answer)
        else:
            ending = [evolve(answer, price=price) if price else answer]
        deltas, times_us = recorder.drain()
        return (*deltas, *ending), times_us

    async def _failure(self, attempt: int, model: str, error: ProviderError) -> list[Event]:
        """That the attempt failed, and what is done about it: nothing, unless a hook has an opinion."""
        state, wish_s = self._journal.state, error.retry_after_s
        assert state.step is not None, "requests are made inside a step"
        said = self._around.redacting.text(error.message)
        left = max(0, self._around.limits.attempts_per_step - (attempt - state.step.cut_off))
        failures = (*state.step.failures, Failure(model=model, kind=error.kind))
        advice = await self._hooks.advice(attempt, error, failures, left)
        message = f"{said}; the provider asks to wait {wish_s:g} s" if wish_s else said
        failed = RequestFailed(attempt=attempt, failure=error.kind, message=message, retryable=error.retryable)
        if advice.answer is None and left and error.kind == OVERFLOW and self._may_shorten(state):
            return [*advice.faults, failed, RequestRetry(attempt=attempt + 1, delay_ms=0)]
        if advice.answer is None or not left:
            return [*advice.faults, failed]
        other = advice.answer.model if isinstance(advice.answer, Switch) else ""
        retry = RequestRetry(attempt=attempt + 1, delay_ms=round(advice.answer.after_s * 1000), model=other)
        return [*advice.faults, failed, retry]

    def _may_shorten(self, state: State) -> bool:
        """Whether a request that was too long is made once more with a shorter context: once a step."""
        assert state.step is not None, "requests are made inside a step"
        before = any(failure.kind == OVERFLOW for failure in state.step.failures)
        return self._around.registry.compactor is not None and not before
