"""Letters: written by anybody, taken by the owner only, in order, each exactly once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Kernel, Mailbox
from flightlog.core import letters
from flightlog.core.letters import Letter
from flightlog.core.state import State
from flightlog.errors import Fenced, InvariantViolation, LogCorrupt, StoreError, UsageError
from flightlog.events import ApprovalDecided, Event, InboxSplice, LetterTaken, TurnEnd, UserMessage
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Hook, tool
from support.children import until
from support.conversation import assert_at_rest
from support.kernels import committing, events_of, opened, plant, records_of


def taken(path: Path) -> list[tuple[str, str]]:
    """(verb, outcome) of all letters taken, in order; no letter twice."""
    read = events_of(path, LetterTaken)
    assert len({letter.letter_id for letter in read}) == len(read)
    return [(letter.verb, letter.outcome) for letter in read]


def texts(path: Path) -> list[str]:
    return [event.text for event in events_of(path, UserMessage)]


async def test_letters_to_a_session_that_nobody_owns_wait_for_its_next_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m"):
            pass
        posted = await kernel.mailbox("s").followup("hello")
        assert events_of(path, LetterTaken) == []
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        assert session.pending == 1
        await session.run()
    assert [event.message_id for event in events_of(path, UserMessage)] == [posted.message_id]
    assert [event.letter_id for event in events_of(path, LetterTaken)] == [posted.letter_id]


async def test_letters_to_a_session_that_does_not_exist_yet_are_taken_when_it_is_created(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        mailbox = kernel.mailbox("s")
        for way in (mailbox.inject, mailbox.followup, mailbox.steer):
            await way(way.__name__)
        await mailbox.cancel()
        await mailbox.approve(3)
        async with kernel.session("other", model="fake:m") as other:
            assert other.pending == 0
        async with kernel.session("s", model="fake:m") as session:
            await session.run()
    assert texts(path) == ["inject", "steer", "followup"]
    assert taken(path) == [
        ("inject", "obeyed"),
        ("followup", "obeyed"),
        ("steer", "obeyed"),
        ("cancel", "refused"),
        ("approve", "refused"),
    ]


async def test_a_letter_is_not_taken_again_by_later_owners(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        await kernel.mailbox("s").followup("hello")
        for _ in range(3):
            async with kernel.session("s", model="fake:m") as session:
                await session.run()
    assert (taken(path), texts(path)) == ([("followup", "obeyed")], ["hello"])


@pytest.mark.parametrize("own", [True, False], ids=["from the owner's kernel", "from another kernel"])
async def test_a_serving_session_runs_for_a_letter_that_wakes(tmp_path: Path, own: bool) -> None:
    path = tmp_path / "a.db"
    async with (
        opened(path, FakeModel([])) as kernel,
        opened(path, FakeModel([])) as other,
        kernel.session("s", model="fake:m") as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(session.serve)
        mailbox = (kernel if own else other).mailbox("s")
        await mailbox.inject("psst")
        await until(lambda: len(taken(path)) == 1)
        assert events_of(path, TurnEnd) == []
        await mailbox.steer("now")
        await until(lambda: len(events_of(path, TurnEnd)) == 1)
        nursery.cancel_scope.cancel()
    assert texts(path) == ["psst", "now"]


async def test_a_running_turn_takes_a_letter_that_steers_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        async def write() -> None:
            await other.mailbox("s").steer("wait!")
            await until(lambda: taken(path) == [("steer", "obeyed")])

        model = FakeModel([[*words("done"), write]])
        async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("hello")
            await session.run()
    assert [(r.turn, r.step) for r in records_of(path) if isinstance(r.event, UserMessage)] == [(1, 1), (1, 2)]


async def test_run_sees_every_letter_that_was_posted_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with (
        opened(path, FakeModel([])) as other,
        opened(path, FakeModel([])) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        for number in range(10):
            await other.mailbox("s").followup(f"hello {number}")
            turn = await session.run()
            assert turn is not None
            assert turn.number == number + 1


@pytest.mark.parametrize("keep", [True, False])
async def test_a_letter_cancels_the_running_turn(tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        async def write() -> None:
            await other.mailbox("s").cancel("enough", keep_queue=keep)
            await trio.sleep_forever()

        async with (
            opened(path, FakeModel([[write]])) as kernel,
            kernel.session("s", model="fake:m") as session,
        ):
            await session.followup("hello")
            await session.followup("queued")
            turn = await session.run()
            assert turn is not None
            assert (turn.reason, turn.cause, session.pending) == ("aborted", "enough", int(keep))
    assert taken(path) == [("cancel", "obeyed")]


@tool(mode="parallel", effect="write")
async def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


async def test_letters_answer_questions_out_of_order_and_each_answer_reaches_its_own_call(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(*[("pay", {"to": name}) for name in ("ada", "bob", "eve")])])
    guard = Hook(point="before_tool", body=lambda call: Ask("may it?"), name="guard")
    bundle = Bundle(adapters=[model], tools=[pay], hooks=[guard])
    async with (
        opened(path, FakeModel([])) as other,
        flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel,
        kernel.session("s", model="fake:m", approver=True) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("pay")
        nursery.start_soon(session.run)
        await until(lambda: len(session.questions()) == 3)
        seqs = [question.seq for question in session.questions()]
        mailbox = other.mailbox("s")
        for seq, allow in ((seqs[2], True), (seqs[0], False), (seqs[1], True)):
            await mailbox.approve(seq, allow=allow, by="grace")
        await mailbox.approve(seqs[0], by="late")
        await mailbox.approve(1, by="nobody asked")
        await until(lambda: len(taken(path)) == 5)
    assert [(e.asked_seq, e.decision) for e in events_of(path, ApprovalDecided)][:3] == [
        (seqs[2], "allowed"),
        (seqs[0], "denied"),
        (seqs[1], "allowed"),
    ]
    assert [outcome for _, outcome in taken(path)] == ["obeyed"] * 3 + ["refused"] * 2
    records = assert_at_rest(path, model)
    results = {r.event.position: r.event.outcome for r in records if r.event.kind == "tool/result"}  # type: ignore[union-attr]
    assert results == {0: "denied", 1: "ok", 2: "ok"}


WISHES: dict[str, Callable[[Mailbox, str], object]] = {
    "followup": lambda mailbox, key: mailbox.followup("hello", key=key),
    "steer": lambda mailbox, key: mailbox.steer("hello", key=key),
    "inject": lambda mailbox, key: mailbox.inject("hello", key=key),
    "approve": lambda mailbox, key: mailbox.approve(7, key=key),
    "cancel": lambda mailbox, key: mailbox.cancel("why", key=key),
    "pause": lambda mailbox, key: mailbox.pause("ada", now=True, key=key),
    "resume": lambda mailbox, key: mailbox.resume("ada", key=key),
    "amend": lambda mailbox, key: mailbox.amend(goal="mop", parameters={"n": [1]}, key=key),
}


@pytest.mark.parametrize("verb", WISHES)
async def test_a_repeated_key_is_the_same_letter_also_once_it_was_taken(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, opened(path, FakeModel([])) as other:
        first = await WISHES[verb](kernel.mailbox("s"), "k")  # type: ignore[misc]
        assert await WISHES[verb](other.mailbox("s"), "k") == first  # type: ignore[misc]
        async with kernel.session("s", model="fake:m"):
            pass
        assert await WISHES[verb](other.mailbox("s"), "k") == first  # type: ignore[misc]
        elsewhere = await WISHES[verb](other.mailbox("t"), "k")  # type: ignore[misc]
        assert elsewhere.letter_id != first.letter_id
        for another in WISHES.keys() - {verb}:
            with pytest.raises(UsageError, match="used before"):
                await WISHES[another](other.mailbox("s"), "k")  # type: ignore[misc]
        async with kernel.session("s", model="fake:m"):
            pass
    assert len(taken(path)) == 1


async def test_a_key_is_one_key_in_the_mailbox_and_in_the_session(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        accepted = await session.followup("hello", key="k")
        posted = await kernel.mailbox("s").followup("hello", key="k")
        await kernel.mailbox("s").followup("other", key="k2")
        await session.take_letters()
        assert posted.message_id == accepted.message_id
        assert (await session.followup("other", key="k2")).message_id
        with pytest.raises(UsageError, match="key"):
            await session.followup("hello", key="k2")
        assert session.pending == 2
    assert taken(path) == [("followup", "repeated"), ("followup", "obeyed")]


@pytest.mark.parametrize(
    "write",
    [
        lambda mailbox: mailbox.followup(7),
        lambda mailbox: mailbox.followup(["hello"]),
        lambda mailbox: mailbox.steer("hello", key=""),
        lambda mailbox: mailbox.approve("7"),
        lambda mailbox: mailbox.approve(7, allow="no"),
        lambda mailbox: mailbox.approve(2**70),
        lambda mailbox: mailbox.cancel(None),
    ],
)
async def test_a_letter_that_makes_no_sense_is_refused_and_not_posted(
    tmp_path: Path, write: Callable[[Mailbox], object]
) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError):
            await write(kernel.mailbox("s"))  # type: ignore[misc]
        assert kernel._store.read("last_letter") == [(0,)]
        with pytest.raises(UsageError, match="session name"):
            kernel.mailbox("")


async def test_the_mailbox_says_how_many_letters_are_still_to_be_taken(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        mailbox = kernel.mailbox("s")
        assert await mailbox.waiting() == 0
        await mailbox.followup("one")
        await mailbox.inject("two")
        assert await mailbox.waiting() == 2
        async with kernel.session("s", model="fake:m"):
            assert await mailbox.waiting() == 0
        await mailbox.steer("three")
        assert await mailbox.waiting() == 1


async def test_what_a_text_column_cannot_keep_arrives_as_it_was_written(tmp_path: Path) -> None:
    path, text = tmp_path / "a.db", "a\0b\ud800" + "x" * 70_000
    async with opened(path, FakeModel([])) as kernel:
        await kernel.mailbox("s").followup(text)
        async with kernel.session("s", model="fake:m") as session:
            await session.run()
    assert texts(path) == [text]


async def test_a_letter_that_was_changed_is_refused_as_damage_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        await kernel.mailbox("s").followup("pay ada")
    database = sqlite3.connect(path)
    database.execute("DROP TRIGGER letters_update")
    database.execute("UPDATE letters SET data = replace(data, 'ada', 'bob')")
    database.commit()
    database.close()
    async with opened(path, FakeModel([])) as kernel:
        with pytest.raises(LogCorrupt) as refused:
            async with kernel.session("s", model="fake:m"):
                pass
    assert refused.value.rule == "letter-hash"
    assert (taken(path), events_of(path, InboxSplice)) == ([], [])


async def test_taking_a_letter_fails_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """A full disk in that very commit: the letter waits as before, and the next owner takes it."""
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        await kernel.mailbox("s").followup("hello")
    async with opened(path, FakeModel([])) as kernel:
        plant(kernel, committing("letter/taken"))
        with pytest.raises(StoreError, match="planted"):
            await kernel.session("s", model="fake:m").__aenter__()
    assert (taken(path), events_of(path, InboxSplice)) == ([], [])
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        await session.run()
    assert (taken(path), texts(path)) == ([("followup", "obeyed")], ["hello"])


async def test_a_storage_fault_of_the_postman_leaves_the_kernel_as_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def wait_for_the_fault() -> None:
        async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
            plant(kernel, committing("letter/taken"))
            await kernel.mailbox("s").followup("hello")
            await trio.sleep_forever()

    with pytest.raises(StoreError, match="planted"):
        await wait_for_the_fault()
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        assert session.pending == 1


async def test_a_session_that_was_taken_over_says_so_when_a_letter_finds_out(tmp_path: Path) -> None:
    """Whoever serves it is told, and the kernel's other sessions go on."""
    path = tmp_path / "a.db"
    async with (
        opened(path, FakeModel([])) as kernel,
        opened(path, FakeModel([])) as thief,
        kernel.session("t", model="fake:m") as other,
    ):
        with pytest.raises(Fenced):
            await _serve_until_taken_over(kernel, thief)
        await thief.mailbox("t").followup("hello")
        await until(lambda: other.pending == 1)


async def test_a_letter_that_the_law_forbids_is_its_own_sessions_fault_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours: the session it is for stops, naming the rule, and the kernel's other sessions go on."""
    path = tmp_path / "a.db"
    lawful = letters.taking

    def unlawful(state: State, letter: Letter, *others: Any) -> tuple[Event, ...]:
        events = lawful(state, letter, *others)
        return (events[0], *events) if letter.key == "poison" else events

    monkeypatch.setattr("flightlog.runtime.letters.taking", unlawful)
    async with opened(path, FakeModel([])) as kernel, kernel.session("t", model="fake:m") as other:
        with pytest.raises(InvariantViolation, match=r"session 's', seq 4: .*rule splice-pending"):
            await _serve_a_letter(kernel, "poison")
        await kernel.mailbox("t").followup("hello")
        await until(lambda: other.pending == 1)


async def _serve_a_letter(kernel: Kernel, key: str) -> None:
    async with kernel.session("s", model="fake:m") as session:
        await kernel.mailbox("s").inject("psst", key=key)
        await session.serve()


async def _serve_until_taken_over(kernel: Kernel, thief: Kernel) -> None:
    async with kernel.session("s", model="fake:m") as session:
        key = kernel._store.key_of("s")
        assert key is not None
        kernel._store.locks.release_session(key.key)
        async with thief.session("s", model="fake:m"):
            thief._postman.remove(thief._postman._sessions[0])  # let the old owner meet the letter
            await thief.mailbox("s").inject("psst")
            await session.serve()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), ExceptionGroup("mine", [ValueError("a")])])
async def test_the_hosts_errors_leave_the_kernel_as_they_were_raised(tmp_path: Path, error: BaseException) -> None:
    async def host() -> None:
        async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
            raise error

    with pytest.raises(type(error)) as caught:
        await host()
    assert caught.value is error
    assert error.__context__ is None


async def test_a_cancelled_host_leaves_the_kernel_at_once(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_letter_posted_while_another_process_holds_the_lock_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, opened(path, FakeModel([])) as blocker:
        blocker._store.database.begin(barrier=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.mailbox("s").followup, "hello")
            await trio.testing.wait_all_tasks_blocked()
            blocker._store.database.rollback()
        async with kernel.session("s", model="fake:m") as session:
            assert session.pending == 1


async def test_letters_are_taken_once_though_run_and_the_postman_take_them_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with (
        opened(path, FakeModel([])) as blocker,
        opened(path, FakeModel([])) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await blocker.mailbox("s").inject("one")
        await blocker.mailbox("s").inject("two")
        blocker._store.database.begin(barrier=False)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(session.take_letters)
            await trio.testing.wait_all_tasks_blocked()
            blocker._store.database.rollback()
        assert session.pending == 2
    assert taken(path) == [("inject", "obeyed")] * 2
