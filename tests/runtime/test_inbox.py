"""The three ways into the inbox: what each wakes, which step it enters, and how long it can be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from flightlog import Session
from flightlog.errors import UsageError
from flightlog.events import InboxSplice, StepStart, TurnEnd, TurnStart, UserMessage
from flightlog.testing import Cue, FakeModel, calls, words
from flightlog_hookspecs import tool
from flightlog_hookspecs.content import text_blocks
from support.conversation import assert_at_rest
from support.kernels import events_of, opened, records_of, session_of, verified


@tool(mode="parallel", effect="read")
async def look() -> str:
    """Look."""
    return "blue"


def entered(path: Path) -> list[tuple[int | None, int | None, str]]:
    """(turn, step, text) of every message that entered a step."""
    return [(r.turn, r.step, r.event.text) for r in records_of(path) if isinstance(r.event, UserMessage)]


def queue(path: Path) -> list[tuple[str, str]]:
    """(slot, text) of the inbox view, in its order."""
    import sqlite3

    with sqlite3.connect(path) as database:
        return database.execute("SELECT slot, text FROM inbox").fetchall()


def sending(box: list[Session], *wanted: tuple[str, str]) -> Cue:
    """A cue for a reply: in the middle of the answer, these messages are sent."""

    async def send() -> None:
        for way, text in wanted:
            await getattr(box[0], way)(text)

    return send


async def test_idle_with_only_an_inject_nothing_runs_and_the_next_turn_holds_it_first(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        await session.inject("by the way")
        assert await session.run() is None
        assert session.pending == 1
        await session.followup("hello")
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason) == (1, "completed")
    assert entered(path) == [(1, 1, "by the way"), (1, 1, "hello")]


async def test_an_idle_session_runs_a_turn_for_a_steer(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        await session.steer("now")
        assert await session.run()
    assert entered(path) == [(1, 1, "now")]


async def test_an_inject_during_a_model_call_enters_the_next_step_and_not_this_request(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()
    model = FakeModel([[sending(box, ("inject", "psst")), *calls(("look", {}))]])
    async with session_of(path, model, look) as session:
        box.append(session)
        await session.followup("hello")
        await session.run()
    assert entered(path) == [(1, 1, "hello"), (1, 2, "psst")]
    assert [b"psst" in b"".join(request) for request in model.requests] == [False, True]


async def test_an_inject_during_the_last_model_call_waits_and_brings_about_no_step(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()
    model = FakeModel([[*words("done"), sending(box, ("inject", "psst"))]])
    async with session_of(path, model) as session:
        box.append(session)
        await session.followup("hello")
        await session.run()
        assert (len(model.requests), session.pending) == (1, 1)
        assert queue(path) == [("next_step", "psst")]
    assert entered(path) == [(1, 1, "hello")]


async def test_a_steer_forces_a_next_step_though_the_model_had_finished(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()
    model = FakeModel([[*words("done"), sending(box, ("inject", "psst"), ("steer", "wait!"))]])
    async with session_of(path, model) as session:
        box.append(session)
        await session.followup("hello")
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason) == (1, "completed")
    assert entered(path) == [(1, 1, "hello"), (1, 2, "psst"), (1, 2, "wait!")]
    assert len(events_of(path, TurnStart)) == 1
    assert len(events_of(path, StepStart)) == 2


async def test_whether_a_message_wakes_is_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        await session.inject("psst")
    async with session_of(path, FakeModel([])) as session:
        assert await session.run() is None
        await session.steer("now")
    async with session_of(path, FakeModel([])) as session:
        assert await session.run()
    assert entered(path) == [(1, 1, "psst"), (1, 1, "now")]


async def test_a_serving_session_is_woken_by_a_steer_and_not_by_an_inject(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await trio.testing.wait_all_tasks_blocked()
        await session.inject("psst")
        await trio.testing.wait_all_tasks_blocked()
        assert entered(path) == []
        await session.steer("now")
        await trio.testing.wait_all_tasks_blocked()
        assert entered(path) == [(1, 1, "psst"), (1, 1, "now")]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["followup", "steer", "inject"])
async def test_a_repeated_key_returns_the_same_message_and_appends_nothing_also_after_a_restart(
    tmp_path: Path, way: str
) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        first = await getattr(session, way)("pay ada", key="order 1")
        other = await getattr(session, way)("pay ada", key="order 2")
        before = session.token
        assert await getattr(session, way)("pay ada", key="order 1") == first.__class__(
            message_id=first.message_id, token=before
        )
        assert session.token == before
    assert first.message_id != other.message_id
    async with session_of(path, FakeModel([])) as session:
        await session.followup("go")
        await session.run()
        before = session.token
        again = await getattr(session, way)("pay ada", key="order 1")
        assert (again.message_id, session.token) == (first.message_id, before)
    assert [text for _, _, text in entered(path)].count("pay ada") <= 2


async def test_a_key_that_names_another_message_is_refused_and_nothing_is_appended(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        await session.followup("pay ada", key="order")
        before = session.token
        for way, content in (("followup", "pay bob"), ("steer", "pay ada"), ("inject", "pay ada")):
            with pytest.raises(UsageError, match="key"):
                await getattr(session, way)(content, key="order")
        await session.edit((await session.followup("pay ada", key="order")).message_id, "pay eve")
        assert session.token != before
        again = await session.followup("pay ada", key="order")
        assert (again.token, session.pending) == (session.token, 1), "a key stands for what was sent under it"


@pytest.mark.parametrize("key", ["", "x" * 201, "line\nbreak", "\ud800", 7, b"k"])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: object) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        with pytest.raises(UsageError, match="a key is"):
            await session.followup("hello", key=key)  # type: ignore[arg-type]
        assert session.pending == 0


async def test_two_sends_under_one_key_at_once_are_one_message(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        ids = []

        async def send() -> None:
            ids.append((await session.followup("hello", key="k")).message_id)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(send)
        assert (len(set(ids)), session.pending) == (1, 1)


async def test_an_edited_message_keeps_its_place_its_slot_and_whether_it_wakes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        note = await session.inject("note")
        first = await session.followup("first")
        await session.followup("second")
        await session.edit(first.message_id, text_blocks("first, edited"))
        await session.edit(note.message_id, "note, edited")
        expected = [("next_step", "note, edited"), ("next_turn", "first, edited"), ("next_turn", "second")]
        assert queue(path) == expected
    async with session_of(path, FakeModel([])) as session:
        assert queue(path) == expected
        await session.run()
    assert entered(path) == [(1, 1, "note, edited"), (1, 1, "first, edited"), (2, 1, "second")]


async def test_editing_an_inject_does_not_let_it_wake(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        note = await session.inject("note")
        await session.edit(note.message_id, "another note")
        assert await session.run() is None


async def test_a_withdrawn_message_never_enters(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        first = await session.followup("first")
        await session.followup("second")
        await session.withdraw(first.message_id)
        await session.run()
    assert entered(path) == [(1, 1, "second")]
    assert [s.message_id for s in events_of(path, InboxSplice) if s.cause == "withdrawn"] == [first.message_id]


async def test_what_does_not_wait_any_more_can_be_changed_no_more_and_the_error_says_why(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        claimed = await session.followup("first")
        await session.run()
        withdrawn = await session.followup("second")
        await session.withdraw(withdrawn.message_id)
        before = session.token
        for message_id, why in (
            (claimed.message_id, "has entered a turn"),
            (withdrawn.message_id, "was withdrawn before"),
            ("nothing", "was never accepted"),
            (["odd"], "was never accepted"),
        ):
            with pytest.raises(UsageError, match=why):
                await session.edit(message_id, "other")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=why):
                await session.withdraw(message_id)  # type: ignore[arg-type]
        assert session.token == before


async def test_a_message_can_be_changed_while_a_turn_runs_until_it_is_claimed(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()
    ids: list[str] = []

    async def change() -> None:
        await box[0].edit(ids[0], "second, edited")
        await box[0].withdraw(ids[1])

    async with session_of(path, FakeModel([[change, *words("done")]])) as session:
        box.append(session)
        await session.followup("first")
        ids += [(await session.followup(text)).message_id for text in ("second", "third")]
        await session.run()
    assert [text for _, _, text in entered(path)] == ["first", "second, edited"]


async def test_a_steer_that_was_taken_and_then_aborted_is_in_the_transcript(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()

    async def cancel() -> None:
        box[0].cancel()

    model = FakeModel([[*words("done"), sending(box, ("steer", "wait!"))], [cancel, *words("never said")]])
    async with session_of(path, model) as session:
        box.append(session)
        await session.followup("hello")
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "aborted"
        await session.followup("again")
        model.replies = [*model.replies[:1], words("fine")]
        await session.run()
    assert entered(path) == [(1, 1, "hello"), (1, 2, "wait!"), (2, 1, "again")]
    assert b"wait!" in b"".join(model.requests[-1])
    assert verified(path, model)


async def test_a_steer_that_was_not_yet_taken_when_its_turn_was_aborted_waits_and_wakes(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()

    async def cancel() -> None:
        box[0].cancel()

    async with session_of(path, FakeModel([[sending(box, ("steer", "wait!")), cancel, *words("x")]])) as session:
        box.append(session)
        await session.followup("hello")
        await session.run()
        assert queue(path) == [("next_step", "wait!")]
        assert await session.run()
    assert entered(path) == [(1, 1, "hello"), (2, 1, "wait!")]


@pytest.mark.parametrize("keep", [True, False])
async def test_cancelling_keeps_the_queue_or_removes_all_of_it_as_the_turn_ends(tmp_path: Path, keep: bool) -> None:
    path, box = tmp_path / "a.db", list[Session]()

    async def cancel() -> None:
        assert box[0].cancel(keep_queue=keep)

    async with session_of(path, FakeModel([[cancel, *words("x")]])) as session:
        box.append(session)
        await session.followup("hello")
        ids = [(await session.followup(text)).message_id for text in ("one", "two", "three")]
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "aborted"
        assert session.pending == (3 if keep else 0)
    records = records_of(path)
    cancelled = [r for r in records if isinstance(r.event, InboxSplice) and r.event.cause == "cancelled"]
    assert [r.event.message_id for r in cancelled] == ([] if keep else ids)  # type: ignore[union-attr]
    (end,) = [r for r in records if isinstance(r.event, TurnEnd)]
    assert {r.at_us for r in cancelled} <= {end.at_us}, "one append with the end of the turn"
    assert_at_rest(path, FakeModel([]))


async def test_what_arrives_while_a_cancelled_turn_winds_down_is_kept_and_gets_a_turn(tmp_path: Path) -> None:
    path, box = tmp_path / "a.db", list[Session]()

    @tool(mode="parallel", effect="read")
    async def slow() -> str:
        """Cancelled and asked for more while it runs."""
        box[0].cancel(keep_queue=False)
        await box[0].followup("later")
        return "done"

    async with session_of(path, FakeModel([calls(("slow", {}))]), slow) as session:
        box.append(session)
        await session.followup("hello")
        await session.followup("queued before")
        await session.run()
        assert queue(path) == [("next_turn", "later")]
        assert await session.run()
    assert entered(path) == [(1, 1, "hello"), (2, 1, "later")]


async def test_cancelling_when_idle_does_nothing(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        await session.followup("hello")
        assert not session.cancel(keep_queue=False)
        assert session.pending == 1


async def test_a_withdrawal_that_waits_behind_another_writer_meets_the_claim_in_either_order(tmp_path: Path) -> None:
    """The driver's claim is decided when its append has its turn, not when it began to wait."""
    path = tmp_path / "a.db"
    model = FakeModel([])
    async with opened(path, model) as blocker, session_of(path, model) as session:
        first = await session.followup("first")
        await session.followup("second")
        blocker._store.database.begin(barrier=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.withdraw, first.message_id)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(session.run)
            await trio.testing.wait_all_tasks_blocked()
            blocker._store.database.rollback()
    assert entered(path) == [(1, 1, "second")]


async def test_a_message_sent_again_while_words_stream_in_is_acknowledged_with_a_row_that_is_on_the_disk(
    tmp_path: Path, autojump_clock: object
) -> None:
    """An ordinary commit, such as the words', may be lost with the power; `expect` would then refuse the log."""

    async def pause() -> None:
        await trio.sleep(1)

    model = FakeModel([[*words("some words")[:-1], pause, pause, *words("some words")[-1:]]])
    async with opened(tmp_path / "a.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("hello", key="k")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await trio.sleep(1.5)
            deltas = [record.seq for record in kernel.read("s").records() if record.event.kind == "assistant/delta"]
            again = await session.followup("hello", key="k")
            assert again.token == session.token
            assert again.token.seq < deltas[0]
        assert session.token.seq == len(list(kernel.read("s").records()))
