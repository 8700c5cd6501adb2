"""The loop: ask `plan` what comes next, do it, until nothing is left to do.

It has no opinion of its own: what happens is decided by `core/plan.py`, how a turn is closed by
`closing.py`, what a capability does by the registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio
from attrs import evolve

from flightlog.core.context import given, joined, news
from flightlog.core.history import EncodedRequest, Place, Prefix
from flightlog.core.inbox import accepted, removed, waiting
from flightlog.core.limits import PROVE_PAGE_MESSAGES
from flightlog.core.plan import Append, Idle, RunTools, SendRequest, Stop, follow, plan, retry_after
from flightlog.core.request import assert_request_reconstructable, changes
from flightlog.core.state import Call, State
from flightlog.runtime.closing import close_turn
from flightlog.runtime.error_groups import leaves
from flightlog.runtime.journal import Journal
from flightlog.runtime.model_call import DeltaRecorder, call_model
from flightlog.runtime.plugins import encoder
from flightlog.runtime.prompting import Prompt
from flightlog.runtime.registry import Registry
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_runner import ToolRunner
from flightlog.store.codec import EventRow, Undecodable, decode_message
from flightlog.store.replay import lone_record
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import FlightlogError, LogCorrupt, ProviderError, StoreError
from flightlog_hookspecs.events import (
    Event,
    Head,
    InboxSplice,
    Message,
    PluginLoaded,
    PluginUnloaded,
    PluginVersion,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    TurnEnd,
    UserMessage,
)
from flightlog_hookspecs.hooks import FailedRequest, RequestView, StepView, StoppingTurn, Switch


class Driver:
    """Drives one session. `cancel` may be called at any time, also when nothing runs."""

    def __init__(self, journal: Journal, around: Surroundings, *, model: str, system: str) -> None:
        self._journal = journal
        self._around = around
        self._model = model
        self._prompt = Prompt(system, around.registry, around.threads)
        self._encoded: EncodedRequest | None = None
        self._proven_header: RequestHeader | None = None
        self._scope: trio.CancelScope | None = None
        self._runner: ToolRunner | None = None
        self._cause = ""
        self._dropped: frozenset[str] = frozenset()
        self._leaving = False

    def cancel(self, cause: str, *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the open turn as aborted because of `cause`. False when there is none.

        With `now`, running tools get no time to end by themselves. Without `keep_queue`, what waits in the
        inbox by now leaves it in the same append as the turn's end; what comes later is kept.
        """
        if self._scope is None and not self._journal.state.turn_open:
            return False
        if not keep_queue:
            self._dropped |= waiting(self._journal.state)
        self._cause = self._cause or cause
        if self._scope:
            self._scope.cancel()
        if self._runner:
            self._runner.stop(grace_s=0 if now else self._around.limits.cancel_grace_s)
        return True

    def leave(self) -> None:
        """End the running turn as `cancel` does, unless what is left of it in the end only waits for people."""
        self._leaving = self._leaving or not self._cause
        self.cancel("session closed")

    async def settle(self) -> None:
        """Close a suspended turn that was cancelled while nobody drove it."""
        if self._cause:
            await close_turn(self._journal, TurnEnd(reason="aborted", cause=self._cause), dropped=self._dropped)
            self._forget_cancel()

    async def run(self) -> None:
        """Drive until idle, or until the open turn was cancelled. The bracket closes whatever happens.

        A fault of a plugin ends its turn with reason error. A storage fault, a bug and the host's own
        cancel are raised, the latter two once the turn is closed.
        """
        if self._cause:
            await self.settle()
            return
        self._scope = trio.CancelScope()
        with self._scope:
            try:
                while not await self._loop_contained():
                    pass
                if self._dropped:  # a cancel that came when there was nothing left to interrupt
                    await self._journal.append(lambda state: removed(state, self._dropped, "cancelled"), barrier=True)
            finally:
                self._scope = None
                self._forget_cancel()

    def _forget_cancel(self) -> None:
        self._cause, self._dropped, self._leaving = "", frozenset(), False

    async def _loop_contained(self) -> bool:
        """Loop until idle. False when a fault of a plugin ended a turn, and what waits is still to be run."""
        try:
            await self._loop()
        except BaseException as error:
            in_turn = self._journal.state.turn_open
            end = _end_for(leaves(error), self._cause)
            stays = self._leaving and self._journal.state.suspended
            if end is not None and not (stays and end.reason == "aborted"):
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
                case Stop(end=end):
                    await self._stop(end)
                case SendRequest(attempt=attempt, delay_ms=delay_ms):
                    if delay_ms:
                        await trio.sleep(delay_ms / 1000)
                    await self._request(attempt)
                case RunTools(calls=calls):
                    await self._run_tools(calls)
                    if self._journal.state.suspended:
                        return  # what is left waits for people, and nobody waits for them

    async def _write(self, *events: Event, times_us: Sequence[int] = (), stops: bool = False) -> None:
        """Commit `events` together with all that follows from them, or from the state when there are none."""
        journal = self._journal
        # Decided when the append's turn has come: until then messages may be edited, withdrawn or added.
        stops = stops or not self._around.hooks.any_at("turn_stopping")
        await journal.append(
            lambda state: follow(state, journal.seq, events, self._around.limits, stops=stops), times_us=times_us
        )

    async def _stop(self, end: TurnEnd) -> None:
        """Let the turn end, unless a hook has more for the model. Nobody is asked at the limit of steps."""
        state = self._journal.state
        if state.steps >= self._around.limits.steps_per_turn:
            await self._write(end, stops=True)
            return
        view = StoppingTurn(
            session=self._journal.session, turn=state.turn, steps=state.steps, text=state.text, usage=state.usage
        )
        opinion = await self._around.hooks.turn_stopping(view)
        await self._journal.append(*opinion.faults)
        for content in opinion.added:
            message_id = self._journal.clock.new_id()
            await self._journal.append(partial(_steered, message_id, content))
        if not opinion.added:
            await self._write(end, stops=True)

    async def _run_tools(self, calls: tuple[Call, ...]) -> None:
        runner = ToolRunner(self._journal, self._around)
        self._runner = runner
        try:
            await runner.run(calls)
        finally:
            self._runner = None

    async def _request(self, attempt: int) -> None:
        """Make one attempt, unless a guard forbids the step."""
        journal = self._journal
        veto = await self._prepare()
        if veto:
            await close_turn(journal, TurnEnd(reason="blocked", message=veto))
            return
        state = journal.state
        assert state.header is not None, "there is one by the first attempt"
        head = state.header.head
        registered, _ = self._around.registry.adapter_of(f"{head.adapter}:{head.model}")
        with registered.plugin.running():
            await self._attempt(attempt, registered.item, head)

    async def _attempt(self, attempt: int, adapter: Adapter, head: Head) -> None:
        """Prove the request, log it, send it, log its end."""
        journal = self._journal
        encoded = await self._prove(adapter, head)
        if await self._is_vetoed(attempt, encoded):
            return
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
        ending: list[Event] = (
            await self._failure(attempt, head, answer) if isinstance(answer, ProviderError) else [answer]
        )
        deltas, times_us = recorder.drain()
        await self._write(*deltas, *ending, times_us=times_us)

    async def _is_vetoed(self, attempt: int, encoded: EncodedRequest) -> bool:
        """Whether a guard keeps the request from being sent; then the turn is closed."""
        journal, hooks = self._journal, self._around.hooks
        if not hooks.any_at("before_request"):
            return False
        view = RequestView(
            session=journal.session,
            turn=journal.state.turn,
            step=journal.state.steps,
            attempt=attempt,
            head=encoded.head,
            messages=Prefix(encoded.messages),
        )
        opinion = await hooks.before_request(view)
        await journal.append(*opinion.faults)
        if opinion.veto:
            await close_turn(journal, TurnEnd(reason="blocked", message=opinion.veto))
        return bool(opinion.veto)

    async def _failure(self, attempt: int, head: Head, error: ProviderError) -> list[Event]:
        """That the attempt failed, and what is done about it: what a hook says, else what the limits say."""
        hooks, limits = self._around.hooks, self._around.limits
        failed = RequestFailed(attempt=attempt, failure=error.kind, message=error.message, retryable=error.retryable)
        retry = retry_after(failed, error.retry_after_s, limits)
        left = max(0, limits.attempts_per_step - attempt)
        if not hooks.any_at("on_request_error"):
            return [failed, retry] if retry else [failed]
        state = self._journal.state
        view = FailedRequest(
            session=self._journal.session,
            turn=state.turn,
            step=state.steps,
            attempt=attempt,
            model=f"{head.adapter}:{head.model}",
            failure=error.kind,
            message=error.message,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            attempts_left=left,
        )
        advice = await hooks.on_request_error(view)
        if advice.answer is not None and left:
            model = advice.answer.model if isinstance(advice.answer, Switch) else ""
            retry = RequestRetry(attempt=attempt + 1, delay_ms=round(advice.answer.after_s * 1000), model=model)
        return [*advice.faults, failed, *([retry] if retry else [])]

    async def _prepare(self) -> str:
        """Log what the model is to be told before an attempt; returns why a guard forbids the step, if one does.

        Before the first attempt of a step: news of sections, what hooks add and, in the first step of a
        turn, a changed head, which starts a new generation. Before a later one: the head of another model.
        """
        journal = self._journal
        state = journal.state
        assert state.step is not None, "requests are made inside a step"
        if state.header is not None and state.step.attempt:
            await journal.append(lambda state: _switched(state, self._around.registry))
            return ""
        anew = state.header is None or state.step.number == 1
        static, runtime, faults = await self._prompt.rendered(given(state), anew=anew)
        due: list[Event] = [*faults]
        if anew:
            system, spans = joined(static)
            head = self._around.registry.head(self._model, system)
            if reason := changes(state.header, head):
                due.append(RequestHeader(head=head, reason=reason, sections=spans))
        due += _changed_plugins(state.plugins, self._around.registry.versions)
        texts, new_id = static | runtime, journal.clock.new_id
        await journal.append(*due, lambda state: _told(state, texts, new_id))
        if not self._around.hooks.any_at("before_step"):
            return ""
        view = StepView(
            session=journal.session, turn=state.turn, step=state.step.number, messages=journal.history.messages()
        )
        opinion = await self._around.hooks.before_step(view)
        added = [UserMessage(message_id=new_id(), content=content, source="plugin") for content in opinion.added]
        await journal.append(*opinion.faults, *added)
        return opinion.veto

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


def _steered(message_id: str, content: tuple[Block, ...], state: State) -> InboxSplice:
    """A message of a plugin that the turn goes on for."""
    return evolve(accepted(state, "steer", message_id, content), source="plugin")


def _changed_plugins(logged: Sequence[PluginVersion], registered: Sequence[PluginVersion]) -> list[Event]:
    """What was taken back and registered since the log last said which plugins there are."""
    gone, new = Counter(logged) - Counter(registered), Counter(registered) - Counter(logged)
    return [
        *(PluginUnloaded(plugin=plugin.name, version=plugin.version) for plugin in gone.elements()),
        *(PluginLoaded(plugin=plugin.name, version=plugin.version) for plugin in new.elements()),
    ]


def _switched(state: State, registry: Registry) -> Sequence[Event]:
    """The head of the model that the next attempt is to be made with, when it is another one."""
    retry, header = state.step.retry if state.step else None, state.header
    if retry is None or header is None or retry.model in ("", f"{header.head.adapter}:{header.head.model}"):
        return ()
    adapter, model = registry.adapter_of(retry.model)
    head = evolve(header.head, adapter=adapter.item.name, model=model)
    return (RequestHeader(head=head, reason=changes(header, head), sections=header.sections),)


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
