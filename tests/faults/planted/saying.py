"""Bugs in what is said: messages, letters, words that stream in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import trio
from attrs import evolve

from flightlog.core import inbox, repair
from flightlog.core.children import settling
from flightlog.core.plan import follow
from flightlog.core.state import State, Step
from flightlog.runtime import children as runtime_children
from flightlog.runtime import closing, recovery
from flightlog.runtime.children import Children
from flightlog.runtime.driver import Driver
from flightlog.runtime.inbox import Inbox
from flightlog.runtime.journal import Journal
from flightlog.runtime.letters import Letterbox
from flightlog.runtime.model_call import DeltaRecorder
from flightlog.store.letter_codec import decode_letter
from flightlog.store.rows import EventRow
from flightlog.store.store import Store
from flightlog_hookspecs.content import TextBlock, text_blocks
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage, InboxSplice, SubagentSettled, TurnEnd
from planted import replaced


@contextmanager
def claim_apart_from_its_message() -> Iterator[None]:
    """A message leaves the inbox in one append and enters the step in another."""
    write = Driver._write

    async def in_two(driver: Driver, *events: Any, times_us: Sequence[int] = ()) -> None:
        journal = driver._journal
        due = follow(journal.state, journal.seq, events, driver._around.limits, stops=True)
        claims = [i for i, event in enumerate(due) if isinstance(event, InboxSplice) and event.cause == "claimed"]
        if not claims:
            await write(driver, *events, times_us=times_us)
            return
        await journal.append(*due[: claims[-1] + 1], times_us=times_us)
        await journal.append(*due[claims[-1] + 1 :])

    with replaced(Driver, "_write", in_two):
        yield


@contextmanager
def letter_taken_before_what_it_brings() -> Iterator[None]:
    """A letter is marked as taken in one append, and what it brings follows in the next."""

    async def in_two(box: Letterbox) -> bool:
        journal, woken = box._journal, False
        for row in journal.store.letters(journal.key, journal.session, box._taken):
            letter = decode_letter(row)
            *brought, taken = box._due(letter, journal.state) or [None]
            if taken is not None:
                await journal.append(taken, barrier=True)
                await journal.append(*brought, barrier=True)
                box._taken = letter.number
                woken = woken or inbox.wakes(journal.state)
        return woken

    with replaced(Letterbox, "take", in_two):
        yield


@contextmanager
def keys_known_from_memory_only() -> Iterator[None]:
    """What was sent under a key is looked up in what this process has seen."""
    first_splice = Inbox.first_splice

    def remembered(box: Inbox, message_id: str) -> InboxSplice | None:
        seen = box.__dict__.setdefault("seen", set())
        known = message_id in seen
        seen.add(message_id)
        return first_splice(box, message_id) if known else None

    with replaced(Inbox, "first_splice", remembered):
        yield


@contextmanager
def half_a_stream_taken_for_an_answer() -> Iterator[None]:
    """Recovery keeps the words of a cut stream as if the model had ended there."""
    cut_attempt = repair._cut_attempt

    def cheerful(state: State, step: Step, streamed: tuple[TextBlock, ...]) -> Any:
        ending = cut_attempt(state, step, streamed)
        return evolve(ending, finish="stop") if isinstance(ending, AssistantMessage) else ending

    with replaced(repair, "_cut_attempt", cheerful):
        yield


@contextmanager
def last_piece_of_a_flush_lost() -> Iterator[None]:
    """Of the deltas that wait to be written the last one is dropped."""
    drain = DeltaRecorder.drain

    def leaking(recorder: DeltaRecorder) -> tuple[list[AssistantDelta], list[int]]:
        del recorder._waiting[-1:]
        return drain(recorder)

    with replaced(DeltaRecorder, "drain", leaking):
        yield


@contextmanager
def words_under_the_last_owner_only() -> Iterator[None]:
    """Recovery keeps what was streamed under the owner before it; a recovery that died is an owner, too."""
    streamed_text = closing.streamed_text

    def forgetful(store: Store, session: str, key: int, state: State) -> tuple[TextBlock, ...]:
        def recent(key: int, after: int = 0) -> Iterable[EventRow]:
            return (row for row in store.rows(key, after) if row.epoch >= state.epoch - 1)

        view: Any = SimpleNamespace(rows=recent, pieces=store.pieces, blob=store.blob)
        return streamed_text(view, session, key, state)

    with replaced(closing, "streamed_text", forgetful):
        yield


@contextmanager
def recovery_that_says_it_anew_each_time() -> Iterator[None]:
    """Whoever opens a session whose turn was interrupted leaves a note about it."""
    close_turn = recovery.close_turn

    async def nagging(journal: Journal, end: TurnEnd, **options: Any) -> None:
        await close_turn(journal, end, **options)
        last = journal.state.last_end
        if last and last.reason == "interrupted":
            note, number = text_blocks("You were interrupted."), journal.clock.new_id()
            await journal.append(lambda state: inbox.accepted(state, "inject", number, note), barrier=True)

    with replaced(recovery, "close_turn", nagging):
        yield


@contextmanager
def settlement_apart_from_its_message() -> Iterator[None]:
    """That a child has settled is committed before the message that tells its parent."""
    settle = Children._settle

    async def piecemeal(children: Children, settled: SubagentSettled) -> None:
        told = settling(children._journal.state, settled)
        with replaced(runtime_children, "settling", lambda *_: told[:1]):
            await settle(children, settled)
        await children._journal.append(*told[1:], barrier=True)

    with replaced(Children, "_settle", piecemeal):
        yield


@contextmanager
def child_given_its_task_when_it_was_said_to_have_started() -> Iterator[None]:
    """A call says that it has started a child that does not exist yet; one that never began cannot be taken up."""
    begin = Children._begin

    def hasty(children: Children, *task: Any) -> trio.Event:
        begin(children, *task)
        begun = trio.Event()
        begun.set()
        return begun

    with replaced(Children, "_begin", hasty):
        yield
