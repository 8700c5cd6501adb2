"""Questions about calls, and the people who answer them."""

from __future__ import annotations

import trio
from attrs import frozen

from flightlog.core.fold import asked_about
from flightlog.core.state import State
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import ApprovalAsked, ApprovalDecided

NOBODY = "nobody"


@frozen(kw_only=True)
class Question:
    """A call that waits for a person: give `seq` to `Session.approve`. `arguments` is raw JSON text."""

    seq: int
    call_id: str
    name: str
    arguments: str


class Approvals:
    """Puts questions into the log and waits for their answers. One per owned session.

    Without an approver nobody will ever answer, so every question is denied at once.
    """

    def __init__(self, journal: Journal, *, has_approver: bool) -> None:
        self._journal = journal
        self._has_approver = has_approver
        self._answered: dict[int, trio.Event] = {}
        self._answers: dict[int, ApprovalDecided] = {}

    async def ask(self, question: ApprovalAsked) -> ApprovalDecided:
        """Ask, durably, and wait for the answer. Cancelling leaves the question to whoever closes the turn."""
        (record,) = await self._journal.append(question, barrier=True)
        if not self._has_approver:
            denied = ApprovalDecided(
                asked_seq=record.seq, decision="denied", by=NOBODY, reason="There is no approver in this session."
            )
            await self._journal.append(denied, barrier=True)
            return denied
        answered = self._answered[record.seq] = trio.Event()
        try:
            await answered.wait()
        finally:
            del self._answered[record.seq]
        return self._answers.pop(record.seq)

    async def decide(self, seq: int, *, allow: bool, by: str, reason: str) -> bool:
        """Record an answer; durable when it returns. False when the question was settled before."""
        if seq not in self._journal.state.questions:
            raise UsageError(f"session {self._journal.session!r} has asked no question at seq {seq}")
        answer = ApprovalDecided(asked_seq=seq, decision="allowed" if allow else "denied", by=by, reason=reason)
        counts = False

        def recorded(state: State) -> ApprovalDecided:
            nonlocal counts
            counts = asked_about(state, seq) is not None
            return answer

        await self._journal.append(recorded, barrier=True)
        if counts:
            self.deliver(answer)
        return counts

    def deliver(self, answer: ApprovalDecided) -> None:
        """Let the call that waits for `answer`, which stands in the log and counts, go on."""
        if answer.asked_seq in self._answered:
            self._answers[answer.asked_seq] = answer
            self._answered[answer.asked_seq].set()

    def open(self) -> list[Question]:
        """The questions that still wait for an answer, in call order."""
        step = self._journal.state.step
        return [
            Question(seq=call.asked_seq, call_id=call.call_id, name=call.name, arguments=call.arguments)
            for call in (step.calls if step else ())
            if call.asked_seq is not None and call.decision is None and call.outcome is None
        ]
