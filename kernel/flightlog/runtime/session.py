"""A session as its owner holds it: put messages in, run, cancel."""

from __future__ import annotations

import trio
from attrs import frozen

from flightlog.core.state import State
from flightlog.runtime.approvals import Approvals, Question
from flightlog.runtime.driver import Driver
from flightlog.runtime.journal import HeadToken, Journal
from flightlog.runtime.subscription import Subscription
from flightlog.store.store import SessionKey
from flightlog_hookspecs.content import Block, TextBlock, ThinkingBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import InboxSplice, TurnEndReason
from flightlog_hookspecs.stream import Usage


@frozen(kw_only=True)
class Turn:
    """How a turn ended: the last answer's words, tokens of all its answers, and why it ended.

    `cause` goes with reason "aborted"; `code` and `message` with "error".
    """

    number: int
    reason: TurnEndReason
    text: str
    usage: Usage
    cause: str = ""
    code: str = ""
    message: str = ""


@frozen(kw_only=True)
class Accepted:
    """A message is durable in the inbox. `token` proves how far the log had come by then."""

    message_id: str
    token: HeadToken


class Session:
    """An owned session. Made by `Kernel.session`; usable from the trio thread it was made in."""

    def __init__(self, journal: Journal, driver: Driver, approvals: Approvals) -> None:
        self._journal = journal
        self._driver = driver
        self._approvals = approvals
        self._running: trio.Event | None = None
        self._finished = False
        self._wake = trio.Event()
        self._closed = False

    @property
    def id(self) -> str:
        """The session's name."""
        return self._journal.session

    @property
    def token(self) -> HeadToken:
        """The newest committed row, to be given back as `expect` when reopening."""
        return self._journal.token

    @property
    def pending(self) -> int:
        """How many messages wait in the inbox."""
        state = self._journal.state
        return len(state.next_turn) + len(state.next_step)

    async def followup(self, content: str | tuple[Block, ...]) -> Accepted:
        """Queue a message for the next turn. Durable when it returns; starts nothing by itself."""
        self._check_open()
        blocks = text_blocks(content)
        if not isinstance(blocks, tuple) or not all(
            isinstance(b, (TextBlock, ThinkingBlock, ToolCallBlock)) for b in blocks
        ):
            raise UsageError(f"a message is a string or a tuple of blocks, not {type(content).__name__}")
        message_id = self._journal.clock.new_id()

        def accepted(state: State) -> InboxSplice:
            return InboxSplice(
                slot="next_turn",
                start=len(state.next_turn),
                message_id=message_id,
                cause="accepted",
                content=blocks,
            )

        await self._journal.append(accepted, barrier=True)
        self._wake.set()
        return Accepted(message_id=message_id, token=self._journal.token)

    async def run(self) -> Turn | None:
        """Drive until idle; returns the last turn, None when there was nothing to do.

        A second call joins the first. `cancel` makes it return the aborted turn and leave the rest of
        the queue. Cancelling the caller closes the turn, then goes on. Raises `StoreError` when the
        log cannot be written (reopen to resume) and `InvariantViolation` for a bug.
        """
        self._check_open()
        state = self._journal.state
        before = state.turn - state.turn_open  # a turn that is under way is one of those this call waits for
        while self._running is not None:
            await self._running.wait()
            if self._finished:
                return self._turn() if self._journal.state.turn > before else None
            # Whoever drove was cancelled or failed: drive in its place.
        done = self._running = trio.Event()
        self._finished = False
        try:
            await self._driver.run()
            self._finished = True
        finally:
            self._running = None
            done.set()
        return self._turn() if self._journal.state.turn > before else None

    async def serve(self) -> None:
        """Run whatever comes in, until cancelled."""
        while True:
            self._wake = trio.Event()
            await self.run()
            if not self._journal.state.next_turn:  # a cancelled turn leaves the queue behind it
                await self._wake.wait()

    def cancel(self, cause: str = "user", *, now: bool = False) -> bool:
        """End the running turn as aborted because of `cause`, keeping the queue. False when idle.

        Running tools get `Limits.cancel_grace_s` to end by themselves; with `now`, or in a second call
        with it, they are cancelled at once.
        """
        return self._driver.cancel(cause, now=now)

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

    async def approve(self, seq: int, *, allow: bool = True, by: str = "user", reason: str = "") -> bool:
        """Answer the question at `seq`; durable when it returns, and the call goes on.

        False when it was settled before (answered, cancelled, or its turn has ended): the answer is
        recorded and has no effect. Raises `UsageError` when nothing was ever asked at `seq`.
        """
        self._check_open()
        return await self._approvals.decide(seq, allow=allow, by=by, reason=reason)

    async def close(self) -> None:
        """End a running turn and refuse everything from now on. Called by the context manager."""
        self._closed = True
        with trio.CancelScope(shield=True):
            while self._running is not None:
                self._driver.cancel("session closed")
                await self._running.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"session {self.id!r} is closed; open it again with kernel.session()")
        self._journal.store.check_alive()

    def _turn(self) -> Turn:
        state = self._journal.state
        end = state.last_end
        assert end is not None, "a driver leaves no turn open"
        return Turn(
            number=state.turn,
            reason=end.reason,
            text=state.text,
            usage=state.usage,
            cause=end.cause,
            code=end.code,
            message=end.message,
        )
