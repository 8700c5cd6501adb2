"""The loop: ask `plan` what comes next, do it, until nothing is left to do.

It has no opinion of its own: what happens is decided by `core/plan.py`, how a turn is closed by
`closing.py`, what a capability does by the registry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import trio
from attrs import evolve

from flightlog.core.inbox import accepted, removed, waiting
from flightlog.core.plan import Append, Idle, Resync, RunTools, SendRequest, Stop, follow, plan
from flightlog.core.repair import SESSION_CLOSED
from flightlog.core.state import Call, State
from flightlog.core.stopping import stopped
from flightlog.runtime.briefing import Briefing
from flightlog.runtime.closing import close_turn
from flightlog.runtime.error_groups import leaves
from flightlog.runtime.goal_checking import aim, is_checked
from flightlog.runtime.hooks import Wish
from flightlog.runtime.journal import Journal
from flightlog.runtime.requesting import Requests
from flightlog.runtime.resyncing import Resyncing
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_runner import ToolRunner
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import FlightlogError, StoreError
from flightlog_hookspecs.events import (
    Event,
    TurnEnd,
)
from flightlog_hookspecs.hooks import StoppingTurn


class Driver:
    """Drives one session. `cancel` may be called at any time, also when nothing runs.

    Where the session is to be handed over, the host's cancel and the close of the session leave the turn open for the
    next owner, in place of ending it as aborted.
    """

    def __init__(self, journal: Journal, around: Surroundings, *, model: str, system: str) -> None:
        self._journal = journal
        self._around = around
        briefing = Briefing(journal, around, model=model, system=system)
        self._requests = Requests(journal, around, briefing)
        self._resyncing = Resyncing(journal, around, briefing)
        self._scope: trio.CancelScope | None = None
        self._runner: ToolRunner | None = None
        self._end: TurnEnd | None = None
        self._dropped: frozenset[str] = frozenset()
        self._leaving = False
        self.ends = 0
        """How often `end` found something to end, also when that then ended by itself."""
        self._last_step = False

    @property
    def drives(self) -> bool:
        """Whether somebody runs the session right now."""
        return self._scope is not None

    def cancel(self, cause: str, *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the open turn as aborted because of `cause`. False when there is none.

        With `now`, running tools get no time to end by themselves. Without `keep_queue`, what waits in the
        inbox by now leaves it in the same append as the turn's end; what comes later is kept.
        """
        grace_s = 0 if now else self._around.limits.cancel_grace_s
        ends = self.end(TurnEnd(reason="aborted", cause=cause), grace_s=grace_s)
        if ends and not keep_queue:
            self._dropped |= waiting(self._journal.state)
        return ends

    def end(self, end: TurnEnd, *, grace_s: float) -> bool:
        """End the open turn with `end`: a stream at once, running tools within `grace_s`. False when there is none.

        What was said first counts, but the shortest grace does.
        """
        if self._scope is None and not self._journal.state.turn_open:
            return False
        self.ends += 1
        self._end = self._end or end
        if self._scope:
            self._scope.cancel()
        if self._runner:
            self._runner.stop(grace_s)
        return True

    def leave(self, *, now: bool = False) -> None:
        """End the running turn as `cancel` does, unless what is left of it in the end only waits for people.

        One that hands over leaves it open. With `now`, running tools get no time to end by themselves.
        """
        if self._around.hands_over:
            if self._runner and now:
                self._runner.hand_over()
            if self._scope:
                self._scope.cancel()
            return
        self._leaving = self._leaving or self._end is None
        self.cancel(SESSION_CLOSED, now=now)

    def pause(self, cause: str, *, now: bool) -> None:
        """End the turn as paused once running tools have ended by themselves.

        With `now` they are cut off. Who hands over leaves the turn open then, and where a call waits for a child or for
        word of how it ended: they are settled as after a crash, once the turn goes on.
        """
        if now and self._around.hands_over:
            self.leave(now=True)
            return
        self.end(TurnEnd(reason="paused", cause=cause), grace_s=0 if now else math.inf)
        if self._runner and not now:
            self._runner.pause()

    def finish_step(self) -> None:
        """Come to rest before the next attempt at a request; for good."""
        self._last_step = True

    async def settle(self) -> None:
        """Close a turn that was ended while nobody drove it."""
        if self._end:
            await close_turn(self._journal, self._end, dropped=self._dropped)
            self._forget_end()

    async def run(self) -> None:
        """Drive until idle, or until the open turn was ended from outside. The bracket closes whatever happens.

        A fault of a plugin ends its turn with reason error. A storage fault, a bug and the host's own
        cancel are raised, the latter two once the turn is closed.
        """
        if self._end:
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
                self._forget_end()

    def _forget_end(self) -> None:
        self._end, self._dropped, self._leaving = None, frozenset(), False

    async def _loop_contained(self) -> bool:
        """Loop until idle. False when a fault of a plugin ended a turn, and what waits is still to be run."""
        try:
            await self._loop()
        except BaseException as error:
            in_turn = self._journal.state.turn_open
            end = _end_for(leaves(error), self._end, stays_open=self._around.hands_over)
            if end is not None and not self._stays_open(end):
                end = evolve(end, message=self._around.redacting.text(end.message))
                await close_turn(self._journal, end, dropped=self._dropped)
            if not in_turn or not isinstance(error, FlightlogError) or isinstance(error, StoreError):
                raise
            return False
        return True

    def _stays_open(self, end: TurnEnd) -> bool:
        """Whether the turn that is to end so is left for the next owner: all that is left of it waits for something."""
        state = self._journal.state
        if end.reason == "paused" and self._around.hands_over:
            return state.step is not None and any(call.started for call in state.step.unanswered)
        return end.reason == "aborted" and self._leaving and state.suspended

    async def _loop(self) -> None:
        journal = self._journal
        while True:
            await self._around.timers.fire()
            match plan(journal.state, self._around.limits):
                case Idle():
                    return
                case Append() if self._last_step and not journal.state.turn_open:
                    return
                case Append():
                    await self._write()
                case Resync() if self._last_step:
                    return
                case Resync():
                    await self._resyncing.run()
                case Stop():
                    await self._stop()
                case SendRequest() if self._last_step:
                    return
                case SendRequest(attempt=attempt, delay_ms=delay_ms):
                    if delay_ms:
                        await trio.sleep(delay_ms / 1000)
                    await self._request(attempt)
                case RunTools(calls=calls):
                    await self._run_tools(calls)
                    if self._journal.state.suspended:
                        return  # what is left waits for people, and nobody waits for them

    async def _write(self, *events: Event, times_us: Sequence[int] = ()) -> None:
        """Commit `events` together with all that follows from them, or from the state when there are none."""
        journal = self._journal
        # Decided when the append's turn has come: until then messages may be edited, withdrawn or added.
        asks = self._around.hooks.any_at("turn_stopping")
        await journal.append(
            lambda state: follow(
                state, journal.seq, events, self._around.limits, stops=not asks and not is_checked(state)
            ),
            times_us=times_us,
        )

    async def _stop(self) -> None:
        """Let the turn end, unless a hook or the goal check finds that it has failed or has more for the model."""
        journal, state = self._journal, self._journal.state
        assert state.header is not None, "a turn that may end has made a request"
        view = StoppingTurn(
            session=journal.session,
            turn=state.turn,
            steps=state.steps,
            text=state.text,
            usage=state.usage,
            head=state.header.head,
            continued=0,
            blocks=state.words,
        )
        wish = await self._around.hooks.turn_stopping(view, state.continued)
        if wish.none and state.task is not None and is_checked(state):
            messages = journal.history.messages()
            found = await self._around.goal_checks.ask(journal.session, state.task, state.text, messages)
            wish = evolve(found, events=(*wish.events, *found.events))
        await journal.append(*self._ending(wish, aim(state)))

    def _ending(self, wish: Wish, checked: tuple[str, str] | None) -> list[Callable[[State], tuple[Event, ...]]]:
        """The parts of the append by which a turn ends, or goes on, as wished; nothing once its goal is another one."""
        journal, limits = self._journal, self._around.limits

        def part(make: Callable[[State], tuple[Event, ...]]) -> Callable[[State], tuple[Event, ...]]:
            return lambda state: make(state) if aim(state) == checked else ()

        end = wish.end or (stopped(journal.state, limits) if wish.more else None)
        if wish.more and end is None:
            steers = [partial(_steered, journal.clock.new_id(), hook, content) for hook, content in wish.more]
            return [part(lambda _: wish.events), *map(part, steers)]
        events = (*wish.events, *([end] if end else []))
        # Without another end the turn ends as it is, unless a message has come meanwhile that it goes on for.
        return [part(lambda state: follow(state, journal.seq, events, limits, stops=True))]

    async def _request(self, attempt: int) -> None:
        ending, times_us = await self._requests.make(attempt)
        if ending:
            await self._write(*ending, times_us=times_us)

    async def _run_tools(self, calls: tuple[Call, ...]) -> None:
        runner = ToolRunner(self._journal, self._around)
        self._runner = runner
        try:
            await runner.run(calls)
        finally:
            self._runner = None


def _steered(message_id: str, hook: str, content: tuple[Block, ...], state: State) -> tuple[Event, ...]:
    """A message of `hook` that the turn goes on for."""
    return (evolve(accepted(state, "steer", message_id, content), source="plugin", hook=hook),)


def _end_for(errors: list[BaseException], wanted: TurnEnd | None, *, stays_open: bool) -> TurnEnd | None:
    """How the turn ends when the loop was left by `errors`; None when it stays open for the next owner.

    That is so when nothing can be written any more, and with `stays_open` when it was the host that broke off.
    """
    if any(isinstance(error, StoreError) for error in errors):
        return None
    faults = [error for error in errors if not isinstance(error, trio.Cancelled)]
    if not faults and wanted:
        return wanted
    if not faults or isinstance(faults[0], KeyboardInterrupt):
        return None if stays_open else TurnEnd(reason="aborted", cause="KeyboardInterrupt" if faults else "host")
    return TurnEnd(reason="error", code=type(faults[0]).__name__, message=str(faults[0]))
