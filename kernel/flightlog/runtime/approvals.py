"""Questions about calls, and the people who answer them.

A question and its answer stand in the log, so both outlive the process: a turn whose calls wait for
nothing but answers is suspended, and the next owner goes on from there.
"""

from __future__ import annotations

import trio
from attrs import frozen

from flightlog.core.fold import asked_about
from flightlog.core.questions import about, objection
from flightlog.core.state import Call, State
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.errors import Fenced, UsageError
from flightlog_hookspecs.events import About, ApprovalAsked, ApprovalDecided, Decision

NOBODY = "nobody"


@frozen(kw_only=True)
class Question:
    """A call that waits for a person: give `seq` to `Session.approve`.

    `arguments` is the raw JSON text it would run with; `guard` wants to know, and asks `question`. One `about` the
    "outcome" of a call that was cut off is for `Session.answer`.
    """

    seq: int
    call_id: str
    name: str
    arguments: str
    question: str
    guard: str
    about: About = ""


class Approvals:
    """Puts questions into the log and waits for their answers. One per owned session.

    Without an approver nobody will ever answer: every question whether a call may start is denied at once, and how one
    ended stays unknown.
    """

    def __init__(self, journal: Journal, *, has_approver: bool) -> None:
        self._journal = journal
        self.has_approver = has_approver
        self._news = trio.Event()
        self._fenced: Exception | None = None
        self.waits = True
        """Whether whoever asks is to wait for an answer, or to leave the call for later."""

    async def ask(self, question: ApprovalAsked) -> None:
        """Ask, durably."""
        await self._journal.append(question, barrier=True)

    async def answer_about(self, position: int) -> ApprovalDecided | None:
        """The answer about the call at `position`, which was asked about; waits for it if need be.

        None when it is not to be waited for. Cancelling leaves the question to whoever closes the turn.
        """
        while (call := self._call(position)).decided is None:
            if not self.has_approver:
                await self._journal.append(lambda state: _unanswered(state, call), barrier=True)
                continue
            if self._fenced:
                raise self._fenced
            if not self.waits:
                return None
            await self._news.wait()
        return call.decided

    async def decide(self, decision: ApprovalDecided) -> bool:
        """Record an answer; durable when it returns. False when the question was settled before.

        Raises `UsageError` when that was never asked, or asks for something else.
        """
        if why := objection(self._journal.state, decision.asked_seq, decision.decision):
            raise UsageError(f"session {self._journal.session!r}: {why}")
        counts = False

        def recorded(state: State) -> ApprovalDecided:
            nonlocal counts
            counts = asked_about(state, decision.asked_seq) is not None
            return decision

        try:
            await self._journal.append(recorded, barrier=True)
        except Fenced as error:
            self.fence(error)
            raise
        self.tell()
        return counts

    def fence(self, error: Exception) -> None:
        """No answer can come any more, because of `error`: whoever waits for one is told."""
        self._fenced = error
        self.tell()

    def tell(self) -> None:
        """An answer has come into the log: let the call that waits for it go on."""
        self._news.set()
        self._news = trio.Event()

    def open(self) -> list[Question]:
        """The questions that still wait for an answer, in call order."""
        step = self._journal.state.step
        return [
            Question(
                seq=call.asked_seq,
                call_id=call.call_id,
                name=call.name,
                arguments=call.wanted,
                question=call.asked.question,
                guard=call.asked.guard,
                about=call.asked.about,
            )
            for call in (step.calls if step else ())
            if call.asked is not None and call.asked_seq is not None and call.decided is None and call.outcome is None
        ]

    def _call(self, position: int) -> Call:
        step = self._journal.state.step
        assert step is not None, "calls are asked about inside their step"
        return step.calls[position]


def _unanswered(state: State, call: Call) -> ApprovalDecided | tuple[()]:
    """That nobody is there to answer, unless somebody has."""
    assert call.asked_seq is not None, "only a question can stay unanswered"
    if asked_about(state, call.asked_seq) is None:
        return ()
    decision: Decision = "unknown" if about(state, call.asked_seq) == "outcome" else "denied"
    return ApprovalDecided(
        asked_seq=call.asked_seq, decision=decision, by=NOBODY, reason="There is no approver in this session."
    )
