"""The mailbox: what anybody may want of a session, from any process, whether or not somebody owns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import trio
from attrs import frozen

from flightlog.core import canonical
from flightlog.core.inbox import Way
from flightlog.core.letters import (
    Amend,
    Answer,
    Body,
    CancelTimer,
    CardGrant,
    Grant,
    Pause,
    Report,
    Resume,
    Stop,
    Words,
)
from flightlog.core.quotas import Budget
from flightlog.core.waking import Wake
from flightlog.runtime.clock import Clock
from flightlog.runtime.committing import durably
from flightlog.runtime.inbox import checked_content, checked_key
from flightlog.runtime.waking import wished
from flightlog.store.codec import file_blobs
from flightlog.store.letter_codec import LetterRow, decode_letter, encode_letter
from flightlog.store.store import Blob, Store
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import Told, Verb


@frozen(kw_only=True)
class Posted:
    """A letter is durable. The session's `letter/taken` with this `letter_id` will say what came of it.

    `message_id` is that of the message it brings, `timer` the name of the timer it sets; empty where it does not.
    """

    letter_id: str
    message_id: str = ""
    timer: str = ""


class Mailbox:
    """Letters to one session, which need not exist yet. Made by `Kernel.mailbox`.

    Each method returns once its letter is durable. The session's owner takes it within some tens of
    milliseconds, the next owner when there is none now; in the order in which they were posted, each
    exactly once. A letter under a `key` that was used before for the same wish is that earlier letter; for
    another wish it is refused with `UsageError`. A message's `key` is also its key in the session itself.
    """

    def __init__(self, store: Store, session: str, clock: Clock) -> None:
        self._store = store
        self._session = session
        self._clock = clock

    async def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.followup`."""
        return await self._send("followup", content, key)

    async def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.steer`."""
        return await self._send("steer", content, key)

    async def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.inject`."""
        return await self._send("inject", content, key)

    async def approve(
        self,
        seq: int,
        *,
        allow: bool = True,
        by: str = "user",
        reason: str = "",
        remember: bool = False,
        key: str | None = None,
    ) -> Posted:
        """As `Session.approve`: answer the question at `seq`."""
        answer = Answer(asked_seq=seq, allow=allow, by=by, reason=reason, remember=remember)
        return await self._post("approve", answer, key)

    async def answer(
        self, seq: int, outcome: Told, *, by: str = "user", reason: str = "", key: str | None = None
    ) -> Posted:
        """As `Session.answer`: say how the call ended that the question at `seq` is about."""
        return await self._post("answer", Report(asked_seq=seq, outcome=outcome, by=by, reason=reason), key)

    async def cancel(
        self, cause: str = "user", *, now: bool = False, keep_queue: bool = True, key: str | None = None
    ) -> Posted:
        """As `Session.cancel`; without `keep_queue`, also when idle, what waits by then leaves the inbox."""
        return await self._post("cancel", Stop(cause=cause, now=now, keep_queue=keep_queue), key)

    async def pause(self, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let the task rest until it is resumed: a stream ends at once, running tools end by themselves.

        With `now` they are cut off. The call of a person's question goes on waiting.
        """
        return await self._post("pause", Pause(by=by, now=now), key)

    async def resume(self, by: str = "user", *, key: str | None = None) -> Posted:
        """Let the task go on that is paused, whatever for."""
        return await self._post("resume", Resume(by=by), key)

    async def amend(
        self,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what the task is to reach; None leaves that as it is. The model is told at its next step.

        Raises `UsageError` when nothing is to change, `BadPayload` for what JSON cannot carry.
        """
        if goal is None and parameters is None:
            raise UsageError("amend changes the goal, the parameters or both; neither was given")
        changed = Amend(
            by=by,
            goal=None if goal is None else checked_goal(goal),
            parameters=None if parameters is None else checked_parameters(parameters),
        )
        return await self._post("amend", changed, key)

    async def grant(self, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let the task use so much `more` of the cards that it has. What was put off for want of tokens goes on.

        Of what is counted anew by the step or by the day, so much more in each.

        Raises `UsageError` when nothing is granted, or what cannot be: its log tells of a card that it has not.
        """
        if not isinstance(more, Budget) or not more.cards:
            raise UsageError(f"a grant is a Budget with at least one card, not {more!r:.100}")
        cards = tuple(CardGrant(card=card, more=count) for card, count in more.cards.items())
        return await self._post("grant", Grant(by=by, cards=cards), key)

    async def wake_at(
        self, when: datetime, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_at`. What is refused only by the session, such as one timer too many, its log tells."""
        return await self._post("set_timer", wished(content, at=when, by=by), key)

    async def wake_after(
        self, after_s: float, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_after`, counted from now: not from when the letter is taken."""
        return await self._post("set_timer", wished(content, after_s=after_s, by=by), key)

    async def wake_every(
        self,
        every_s: float,
        content: str | tuple[Block, ...],
        *,
        first: datetime | None = None,
        until: datetime | None = None,
        times: int | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """As `Session.wake_every`, counted from now."""
        wish = wished(content, at=first, every_s=every_s, until=until, times=times, by=by)
        return await self._post("set_timer", wish, key)

    async def cancel_timer(self, name: str, by: str = "user", *, key: str | None = None) -> Posted:
        """As `Session.cancel_timer`."""
        return await self._post("cancel_timer", CancelTimer(timer=name, by=by), key)

    async def waiting(self) -> int:
        """How many letters the session's owner, or its next one, has still to take."""
        found = self._store.key_of(self._session)
        return len(self._store.letters(found.key if found else 0, self._session, 0))

    async def _send(self, way: Way, content: str | tuple[Block, ...], key: str | None) -> Posted:
        return await self._post(way, Words(content=checked_content(content)), key)

    async def _post(self, verb: Verb, body: Body, key: str | None) -> Posted:
        if key is not None:
            checked_key(key)
        wanted = encode_letter(self._clock.new_id(), self._session, key, self._clock.now_us(), verb, body)
        there = await self._posted(wanted, file_blobs(body))
        if (there.verb, there.data) != (wanted.verb, wanted.data):
            raise UsageError(f"key {key!r} was used before for another letter to session {self._session!r}")
        letter = decode_letter(there)
        return Posted(
            letter_id=letter.uid,
            message_id=letter.message_id if isinstance(body, Words) else "",
            timer=letter.timer if isinstance(body, Wake) else "",
        )

    @trio.lowlevel.enable_ki_protection
    async def _posted(self, letter: LetterRow, files: Sequence[Blob]) -> LetterRow:
        """Enter it, or find the one under its key. Cancelled while it waits, it leaves nothing behind."""
        return await durably(self._store, lambda: self._store.post(letter, files))


def checked_goal(goal: object) -> str:
    """`goal` as a task's. Raises `UsageError` when it says nothing."""
    if not isinstance(goal, str) or not goal.strip():
        raise UsageError(f"a goal is a text that says something, not {goal!r}")
    return goal


def checked_parameters(parameters: object) -> str:
    """`parameters` in canonical JSON. Raises `UsageError` or `BadPayload` when they are no JSON object."""
    if not isinstance(parameters, Mapping):
        raise UsageError(f"parameters are a mapping of names to JSON values, not a {type(parameters).__name__}")
    return canonical.dumps(dict(parameters))
