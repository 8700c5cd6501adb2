"""The loop: ask `plan` what comes next, do it, until nothing is left to do.

It has no opinion of its own: what happens is decided by `core/plan.py`, how a turn is closed by
`closing.py`, what a capability does by the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from flightlog.core.context import given, joined, news
from flightlog.core.history import EncodedRequest, Place, Prefix
from flightlog.core.inbox import removed, waiting
from flightlog.core.limits import PROVE_PAGE_MESSAGES
from flightlog.core.plan import Append, Idle, RunTools, SendRequest, follow, plan, retry_after
from flightlog.core.request import assert_request_reconstructable, changes
from flightlog.core.state import Call, State
from flightlog.runtime.closing import close_turn
from flightlog.runtime.error_groups import leaves
from flightlog.runtime.journal import Journal
from flightlog.runtime.model_call import DeltaRecorder, call_model
from flightlog.runtime.plugins import encoder
from flightlog.runtime.prompting import Prompt
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_runner import ToolRunner
from flightlog.store.codec import EventRow, Undecodable, decode_message
from flightlog.store.replay import lone_record
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.errors import FlightlogError, LogCorrupt, ProviderError, StoreError
from flightlog_hookspecs.events import (
    Event,
    Head,
    Message,
    RequestFailed,
    RequestHeader,
    RequestSent,
    TurnEnd,
    UserMessage,
)


class Driver:
    """Drives one session. `cancel` may be called at any time, also when nothing runs."""

    def __init__(self, journal: Journal, around: Surroundings, *, model: str, system: str) -> None:
        self._journal = journal
        self._around = around
        self._model = model
        self._prompt = Prompt(system, around.registry.sections, around.threads)
        self._encoded: EncodedRequest | None = None
        self._proven_header: RequestHeader | None = None
        self._scope: trio.CancelScope | None = None
        self._runner: ToolRunner | None = None
        self._cause = ""
        self._dropped: frozenset[str] = frozenset()

    def cancel(self, cause: str, *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the running turn as aborted because of `cause`. False when nothing runs.

        With `now`, running tools get no time to end by themselves. Without `keep_queue`, what waits in the
        inbox by now leaves it in the same append as the turn's end; what comes later is kept.
        """
        if self._scope is None:
            return False
        if not keep_queue:
            self._dropped |= waiting(self._journal.state)
        self._cause = self._cause or cause
        self._scope.cancel()
        if self._runner:
            self._runner.stop(grace_s=0 if now else self._around.limits.cancel_grace_s)
        return True

    async def run(self) -> None:
        """Drive until idle, or until the running turn was cancelled. The bracket closes whatever happens.

        A fault of a plugin ends its turn with reason error. A storage fault, a bug and the host's own
        cancel are raised, the latter two once the turn is closed.
        """
        self._scope = trio.CancelScope()
        with self._scope:
            self._cause, self._dropped = "", frozenset()
            try:
                while not await self._loop_contained():
                    pass
                if self._dropped:  # a cancel that came when there was nothing left to interrupt
                    await self._journal.append(lambda state: removed(state, self._dropped, "cancelled"), barrier=True)
            finally:
                self._scope = None

    async def _loop_contained(self) -> bool:
        """Loop until idle. False when a fault of a plugin ended a turn, and what waits is still to be run."""
        try:
            await self._loop()
        except BaseException as error:
            in_turn = self._journal.state.turn_open
            end = _end_for(leaves(error), self._cause)
            if end is not None:
                await close_turn(self._journal, end, dropped=self._dropped)
            if not in_turn or not isinstance(error, FlightlogError) or isinstance(error, StoreError):
                raise
            return False
        return True

    async def _loop(self) -> None:
        journal = self._journal
        while True:
            match plan(journal.state, self._around.limits):
                case Idle():
                    return
                case Append():
                    await self._write()
                case SendRequest(attempt=attempt, delay_ms=delay_ms):
                    if delay_ms:
                        await trio.sleep(delay_ms / 1000)
                    await self._request(attempt)
                case RunTools(calls=calls):
                    await self._run_tools(calls)

    async def _write(self, *events: Event, times_us: Sequence[int] = ()) -> None:
        """Commit `events` together with all that follows from them, or from the state when there are none."""
        journal = self._journal
        # Decided when the append's turn has come: until then messages may be edited, withdrawn or added.
        await journal.append(lambda state: follow(state, journal.seq, events, self._around.limits), times_us=times_us)

    async def _run_tools(self, calls: tuple[Call, ...]) -> None:
        runner = ToolRunner(self._journal, self._around)
        self._runner = runner
        try:
            await runner.run(calls)
        finally:
            self._runner = None

    async def _request(self, attempt: int) -> None:
        """Make one attempt: prove the request, log it, send it, log its end."""
        journal = self._journal
        if journal.state.header is None or (journal.state.step and journal.state.step.attempt == 0):
            await self._prepare()
        assert journal.state.header is not None, "there is one by the first attempt"
        head = journal.state.header.head
        adapter, _ = self._around.registry.adapter_of(f"{head.adapter}:{head.model}")
        encoded = await self._prove(adapter, head)
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
        recorder = DeltaRecorder(journal, attempt, self._around.limits.delta_flush_ms)
        answer = await call_model(journal, adapter, request, recorder, self._around.limits)
        ending: list[Event] = []
        if isinstance(answer, ProviderError):
            failed = RequestFailed(
                attempt=attempt, failure=answer.kind, message=answer.message, retryable=answer.retryable
            )
            retry = retry_after(failed, answer.retry_after_s, self._around.limits)
            ending += [failed, retry] if retry else [failed]
        else:
            ending.append(answer)
        deltas, times_us = recorder.drain()
        await self._write(*deltas, *ending, times_us=times_us)

    async def _prepare(self) -> None:
        """Log what the model is to be told before the first attempt of a step: a new head, news of sections.

        A changed head starts a new generation, at the first step of a turn only.
        """
        journal = self._journal
        state = journal.state
        assert state.step is not None, "requests are made inside a step"
        anew = state.header is None or state.step.number == 1
        static, runtime, faults = await self._prompt.rendered(given(state), anew=anew)
        due: list[Event] = [*faults]
        if anew:
            system, spans = joined(static)
            head = self._around.registry.head(self._model, system)
            if reason := changes(state.header, head):
                due.append(RequestHeader(head=head, reason=reason, sections=spans))
        texts, new_id = static | runtime, journal.clock.new_id
        await journal.append(*due, lambda state: _told(state, texts, new_id))

    async def _prove(self, adapter: Adapter, head: Head) -> EncodedRequest:
        """The request, encoded; proven to be what the log says. See `assert_request_reconstructable`.

        In pages, with a look at the rest of the world in between: the first request after an opening
        covers the whole conversation. Nothing that a model sees is written meanwhile.
        """
        journal = self._journal
        encoded, self._encoded = self._encoded, None  # an encoder that fails halfway leaves nothing to build on
        if encoded is None or encoded.head != head:
            # A new head generation: the same messages behind another head, compared and encoded afresh.
            encoded = EncodedRequest(head, encoder(adapter))
        header = self._logged_header()
        while True:
            known = len(encoded.messages)
            page = journal.history.page(known, PROVE_PAGE_MESSAGES)
            after = journal.history.place(known - 1) if known else 0
            is_last = known + len(page) == len(journal.history)
            logged = self._in_log(after, None if is_last else page[-1][0][0])
            assert_request_reconstructable(header, head, page, logged)
            for _, message in page:
                encoded.add(message)
            if is_last:
                break
            await trio.lowlevel.checkpoint()
        self._encoded = encoded
        return encoded

    def _logged_header(self) -> RequestHeader | None:
        """The header in force as the log has it, read once per generation; None when there is none."""
        journal = self._journal
        header = journal.state.header
        if header is None or header is not self._proven_header:
            rows = journal.store.read("event_at", journal.key, journal.state.header_seq)
            event = lone_record(journal.store, journal.session, EventRow(*rows[0])).event if rows else None
            if event != header or not isinstance(event, RequestHeader):
                return event if isinstance(event, RequestHeader) else None
            self._proven_header = header
        return header

    def _in_log(self, after_place: int, up_to_place: int | None) -> list[tuple[Place, Message]]:
        store, session = self._journal.store, self._journal.session
        rows = store.read("messages_between", session, after_place, up_to_place)
        try:
            return [
                ((place, position), decode_message(kind, text, data, store.blob))
                for place, position, kind, text, data in rows
            ]
        except Undecodable as error:
            raise LogCorrupt(session, None, error.rule, error.detail) from error


def _told(state: State, texts: Mapping[str, str], new_id: Callable[[], str]) -> list[UserMessage]:
    """What the model has to be told of its prompt sections, whose texts are these."""
    return [
        UserMessage(message_id=new_id(), content=content, source="context", section=section)
        for section, content in news(given(state), texts)
    ]


def _end_for(errors: list[BaseException], cause: str) -> TurnEnd | None:
    """How the turn ends when the loop was left by `errors`; None when nothing can be written any more."""
    if any(isinstance(error, StoreError) for error in errors):
        return None  # the next open closes the turn
    faults = [error for error in errors if not isinstance(error, trio.Cancelled)]
    if not faults:
        return TurnEnd(reason="aborted", cause=cause or "host")
    if isinstance(faults[0], KeyboardInterrupt):
        return TurnEnd(reason="aborted", cause="KeyboardInterrupt")
    return TurnEnd(reason="error", code=type(faults[0]).__name__, message=str(faults[0]))
