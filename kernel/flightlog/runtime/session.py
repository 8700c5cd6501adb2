"""A session as its owner holds it: put messages in, run, cancel."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, get_args

import trio
from attrs import frozen

from flightlog.core.inbox import Way, wakes
from flightlog.core.letters import Answer, Report
from flightlog.core.timer import keyed_name, timer_name
from flightlog.core.waking import Wake, next_due_us
from flightlog.runtime.approvals import Question
from flightlog.runtime.driver import Driver
from flightlog.runtime.inbox import Accepted, Inbox, checked_key
from flightlog.runtime.journal import HeadToken, Journal
from flightlog.runtime.letters import Letterbox
from flightlog.runtime.observer import Observer
from flightlog.runtime.plugins import register
from flightlog.runtime.registration import Registration
from flightlog.runtime.subscription import Subscription
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.waking import wished
from flightlog.store.store import SessionKey
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import Fenced, StoreStopped, UsageError
from flightlog_hookspecs.events import Told, TurnEnd, TurnEndReason
from flightlog_hookspecs.json_answer import json_of
from flightlog_hookspecs.stream import Usage
from flightlog_hookspecs.timers import OpenTimer


@frozen(kw_only=True)
class Turn:
    """How a turn ended: the last answer's words, tokens of all its answers, and why it ended.

    `cause` goes with reason "aborted"; `code` and `message` with "error". `blocks` are the words block by block.
    """

    number: int
    reason: TurnEndReason
    text: str
    usage: Usage
    cause: str = ""
    code: str = ""
    message: str = ""
    blocks: tuple[str, ...] = ()

    def json(self) -> Any:
        """The JSON value that its words are, or else their last block; one code fence around all of it is left out.

        Raises `UsageError` when it did not complete, or when its words are no JSON.
        """
        if self.reason != "completed":
            why = ": ".join(filter(None, (self.code or self.cause, self.message)))
            raise UsageError(f"turn {self.number} has no JSON, it ended as {self.reason}" + (why and f" ({why})"))
        try:
            return json_of(self.blocks or self.text)
        except ValueError as error:
            raise UsageError(
                f"turn {self.number} has no JSON: {error}. Register StructuredOutput to ask for it."
            ) from None


class Session:
    """An owned session. Made by `Kernel.session`; usable from the trio thread it was made in."""

    def __init__(self, journal: Journal, driver: Driver, around: Surroundings) -> None:
        self._journal = journal
        self._driver = driver
        self._approvals = approvals = around.approvals
        self._registry = around.registry
        self.around = around  # for the kernel's own stages of a task
        self._children = around.children
        self._children.woken = self._look_up
        self._observer = Observer(journal, around)
        self._timers = around.timers
        self._inbox = Inbox(journal)
        self._letterbox = Letterbox(journal, self._inbox, driver, approvals, around.limits)
        self._running: trio.Event | None = None
        self._finished = False
        self._wake = trio.Event()
        self._closed = False
        self._fenced: Exception | None = None

    @property
    def id(self) -> str:
        """The session's name."""
        return self._journal.session

    @property
    def token(self) -> HeadToken:
        """The newest row that is safe from power loss, to be given back as `expect` when reopening."""
        return self._journal.token

    @property
    def pending(self) -> int:
        """How many messages wait in the inbox."""
        state = self._journal.state
        return len(state.next_turn) + len(state.next_step)

    async def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next turn. Durable when it returns; starts nothing by itself.

        Under a `key` that was used before, by whomever and before whatever crash, it changes nothing and
        returns the message that was accepted then. Raises `UsageError` when that was another message.
        """
        return await self._accept("followup", content, key)

    async def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next step: the running turn takes it there, and goes on for it.

        When idle, it gets a turn of its own. Durable when it returns; starts nothing by itself. For
        `key` see `followup`.
        """
        return await self._accept("steer", content, key)

    async def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Lay a message beside the next step, whatever brings that about; it never does so itself.

        Durable when it returns. For `key` see `followup`.
        """
        return await self._accept("inject", content, key)

    async def edit(self, message_id: str, content: str | tuple[Block, ...]) -> None:
        """Give a message that still waits other content; it keeps its place. Durable when it returns.

        Raises `UsageError` when the message has entered a turn or was withdrawn.
        """
        self._check_open()
        await self._inbox.edit(message_id, content)

    async def withdraw(self, message_id: str) -> None:
        """Take back a message that still waits. Durable when it returns. Raises `UsageError` as `edit` does."""
        self._check_open()
        await self._inbox.withdraw(message_id)

    async def wake_at(self, when: datetime, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """Set a timer: from `when` on (a time with a zone), the message is one for the next turn. Returns its name.

        Durable when it returns; starts nothing by itself: whoever drives the session then, `run` or `serve`, lets it
        fire. One that is past is due at once. Under a `key` that was used before, it changes nothing.
        Raises `UsageError` when there can be no such timer, or too many are open: see `Limits.timers_open`.
        """
        return await self._set_timer(wished(content, at=when), key)

    async def wake_after(self, after_s: float, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """As `wake_at`, `after_s` seconds from now."""
        return await self._set_timer(wished(content, after_s=after_s), key)

    async def wake_every(
        self,
        every_s: float,
        content: str | tuple[Block, ...],
        *,
        first: datetime | None = None,
        until: datetime | None = None,
        times: int | None = None,
        key: str | None = None,
    ) -> str:
        """As `wake_at`, every `every_s` seconds (1 at least) from `first` on, or else from one period after now on.

        Runs that were missed, during a long turn or while nobody drove the session, are one in the end. It ends when it
        has fired `times` times, or would next after `until`.
        """
        return await self._set_timer(wished(content, at=first, every_s=every_s, until=until, times=times), key)

    async def cancel_timer(self, name: str, by: str = "user") -> bool:
        """Let the timer not fire any more; durable when it returns. False when it was not to anyway."""
        self._check_open()
        cancelled = await self._timers.cancel(name, by)
        self._wake.set()
        return cancelled

    def timers(self) -> tuple[OpenTimer, ...]:
        """The timers that are still to fire, in the order in which they were set."""
        return self._timers.open()

    async def run(self, *, wait: bool = True, children: bool = False) -> Turn | None:
        """Drive until idle; returns the last turn, None when there was nothing to do.

        Children in the background that have not settled go on beside it, and after it until the session is closed.
        With `children`, it returns once all of them have settled and the model has heard of it.

        A turn whose calls wait for a person's answers goes on when they come; without `wait` it is left
        open, and returned with reason "paused". A second call joins the first, and waits as that one does or
        longer. Timers that have come due fire before each turn. `cancel` makes it return the aborted turn and
        leave the rest of the queue. Cancelling the caller closes the turn, then goes on. Raises `StoreError` when
        the log cannot be written (reopen to resume) and `InvariantViolation` for a bug.
        """
        ends = self._driver.ends
        turn = await self._run(wait=wait)
        # A cancel that comes as the turn ends finds nothing to abort, and yet whoever runs it is to return.
        while children and self._driver.ends == ends and not (turn and turn.reason in ("aborted", "paused")):
            state = self._journal.state
            if not wakes(state):
                if not state.unsettled:
                    break
                self._children.take_up()
                await self._children.news()
                if self._closed:
                    break
            turn = await self._run(wait=wait) or turn
        return turn

    async def _run(self, *, wait: bool) -> Turn | None:
        self._check_open()
        await self.take_letters()
        self._check_open(in_place=False)
        self._children.take_up()
        state = self._journal.state
        before = state.turn - state.turn_open  # a turn that is under way is one of those this call waits for
        while self._running is not None:
            await self._running.wait()
            if self._finished and not (wait and self._journal.state.suspended):
                return self._turn() if self._journal.state.turn > before else None
            # Whoever drove was cancelled or failed: drive in its place.
            self._check_open()
        done = self._running = trio.Event()
        self._finished = False
        self._approvals.waits = wait
        try:
            await self._driver.run()
            self._finished = True
        finally:
            self._running = None
            done.set()
        return self._turn() if self._journal.state.turn > before else None

    async def serve(self) -> None:
        """Run whatever comes in, and whatever timers bring, until cancelled."""
        while True:
            self._wake = trio.Event()
            await self.run()
            if not wakes(self._journal.state):  # a cancelled turn leaves the queue behind it
                await self._journal.clock.until(next_due_us(self._journal.state), self._wake)

    def cancel(self, cause: str = "user", *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the running turn as aborted because of `cause`. False when idle, and then nothing happens.

        A turn that waits for people while nobody runs it ends in the next `run`, or when the session is closed.
        Running tools get `Limits.cancel_grace_s` to end by themselves; with `now`, or in a second call
        with it, they are cancelled at once. Without `keep_queue`, all messages that wait by now leave the
        inbox as the turn ends; what is sent later, while it winds down, is kept.
        """
        return self._driver.cancel(cause, now=now, keep_queue=keep_queue)

    def end(self, end: TurnEnd, *, grace_s: float) -> bool:
        """End the open turn with `end`: a stream at once, running tools within `grace_s`. False when there is none."""
        return self._driver.end(end, grace_s=grace_s)

    def finish_step(self) -> None:
        """Let `run` return once the step is finished that is under way; the turn stays open."""
        self._driver.finish_step()
        self.wake()

    def wake(self) -> None:
        """Let `woken` return."""
        self._wake.set()

    async def woken(self) -> None:
        """Wait until a message or a letter has come, a timer is due, or the session is to be left."""
        self._wake = trio.Event()
        await self._journal.clock.until(next_due_us(self._journal.state), self._wake)

    def events(self, after: int = 0, *, deltas: bool = True) -> Subscription:
        """The records behind seq `after`, then those to come, until the session is closed.

        An async iterator: `async for record in session.events()`, any number of them at once. What it
        yields is durable; nothing is left out or repeated, however slow its reader, and the session never
        waits for one. Without `deltas`, `assistant/delta` is left out. Raises `UsageError` when there
        is no record `after`.
        """
        journal = self._journal
        key = SessionKey(journal.key, journal.uid)
        return Subscription(journal.store, self.id, key, journal.feed, after=after, deltas=deltas, stay=journal.stay)

    def questions(self) -> list[Question]:
        """The calls that wait for a person's answer, in call order."""
        return self._approvals.open()

    async def approve(
        self, seq: int, *, allow: bool = True, by: str = "user", reason: str = "", remember: bool = False
    ) -> bool:
        """Answer the question at `seq`; durable when it returns, and the call goes on.

        An answer to `remember` tells guards about later calls of the same tool in this session.

        False when it was settled before (answered, cancelled, or its turn has ended): the answer is
        recorded and has no effect. Raises `UsageError` when nothing was ever asked at `seq`, or what `answer`
        is for.
        """
        self._check_open()
        answer = Answer(asked_seq=seq, allow=allow, by=by, reason=reason, remember=remember)
        return await self._approvals.decide(answer.decided)

    async def answer(self, seq: int, outcome: Told, *, by: str = "user", reason: str = "") -> bool:
        """Say how the call ended that the question at `seq` is about: "done", "not_done" or "unknown".

        Durable when it returns. A call that is done counts as such, without its output; one that is not done runs;
        of one that is unknown the model is told so. False when it was settled before, as with `approve`. Raises
        `UsageError` when nothing was ever asked at `seq`, or what `approve` is for.
        """
        self._check_open()
        if outcome not in get_args(Told):
            raise UsageError(f"outcome must be one of {get_args(Told)}, not {outcome!r}")
        return await self._approvals.decide(Report(asked_seq=seq, outcome=outcome, by=by, reason=reason).decided)

    def register(self, plugin: object) -> Registration:
        """Register `plugin` for this session only; close what this returns to take it back.

        Its tools, adapters and sections shadow those of the kernel under the same name. What it changes in
        the head takes effect at the next turn. Raises `PluginError`, and nothing is registered.
        """
        self._check_open()
        return register(self._registry, plugin)

    async def observe(self) -> None:
        """Tell hooks what is committed, until the session is closed. The kernel runs it."""
        await self._observer.run(self.events(self._journal.opened_behind))

    async def observed(self) -> None:
        """Wait until hooks have seen the last of what was committed."""
        await self._observer.finish()

    async def release(self) -> None:
        """Take back what was registered for this session only, after its hooks have seen its end."""
        await self._registry.close()

    async def take_letters(self) -> None:
        """Turn the letters that wait in the mailbox into events, and into what they ask for.

        The kernel calls it on opening and whenever a letter may have come.
        """
        if await self._letterbox.take():
            self._wake.set()

    def fence(self, error: Exception) -> None:
        """Refuse everything from now on because of `error`, and wake whoever waits here for messages or answers."""
        self._fenced = error
        self._approvals.fence(error)
        self._children.leave()
        self._wake.set()

    async def close(self, *, now: bool = False) -> None:
        """End a running turn and refuse everything from now on. Called by the context manager.

        Running tools get `Limits.cancel_grace_s` to end, or no time at all with `now`. A turn that then only waits for
        people stays as it is, for the next owner.
        """
        self._closed = True
        self._wake.set()
        with trio.CancelScope(shield=True):
            while self._running is not None:
                self._driver.leave(now=now)
                await self._running.wait()
            await self._children.close()
            with suppress(StoreStopped, Fenced):
                await self._driver.settle()

    def _check_open(self, *, in_place: bool = True) -> None:
        if self._closed:
            raise UsageError(f"session {self.id!r} is closed; open it again with kernel.session()")
        self._journal.store.check_alive(in_place=in_place)
        if self._fenced:
            raise self._fenced

    async def _set_timer(self, wish: Wake, key: str | None) -> str:
        self._check_open()
        name = timer_name(self._journal.clock.new_id()) if key is None else keyed_name(checked_key(key))
        await self._timers.set(wish, name)
        self._wake.set()
        return name

    async def _accept(self, way: Way, content: str | tuple[Block, ...], key: str | None) -> Accepted:
        self._check_open()
        accepted = await self._inbox.accept(way, content, key)
        self._look_up()
        return accepted

    def _look_up(self) -> None:
        if wakes(self._journal.state):
            self._wake.set()

    def _turn(self) -> Turn:
        state = self._journal.state
        end = TurnEnd(reason="paused", cause="approval") if state.turn_open else state.last_end
        assert end is not None, "a driver leaves a turn open only while it waits for people"
        return Turn(
            number=state.turn,
            reason=end.reason,
            text=state.text,
            usage=state.usage,
            cause=end.cause,
            code=end.code,
            message=end.message,
            blocks=state.words,
        )
