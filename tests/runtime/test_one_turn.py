"""What one turn writes, exactly, and in which appends."""

from __future__ import annotations

from pathlib import Path

from flightlog import tool
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Usage
from flightlog_hookspecs.events import InboxSplice, TurnEnd, UserMessage
from support.kernels import events_of, kinds_of, opened, records_of, session_of, verified

OPENED = ["session/created", "session/opened"]
ACCEPTED = ["inbox/splice"]
CLAIMED = ["turn/start", "inbox/splice", "step/start", "user/message"]
CLOSED = ["session/closed"]


@tool(mode="parallel", effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


async def test_a_turn_without_tools_writes_exactly_these_events(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("Hello.")])) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.number, turn.reason, turn.text) == (1, "completed", "Hello.")
    assert kinds_of(tmp_path / "a.db") == [
        *OPENED,
        *ACCEPTED,
        *CLAIMED,
        "request/header",
        "request/sent",
        "assistant/message",
        "step/end",
        "turn/end",
        *CLOSED,
    ]


async def test_a_turn_with_tools_writes_one_step_per_request_and_one_header(tmp_path: Path) -> None:
    model = FakeModel([[*words("Looking."), *calls(("look", {"at": "sky"}))], words("Blue.")])
    async with session_of(tmp_path / "a.db", model, look) as session:
        await session.followup("hi")
        await session.run()
    assert kinds_of(tmp_path / "a.db") == [
        *OPENED,
        *ACCEPTED,
        *CLAIMED,
        "request/header",
        "request/sent",
        "assistant/message",
        "tool/call",
        "tool/result",
        "step/end",
        "step/start",
        "request/sent",
        "assistant/message",
        "step/end",
        "turn/end",
        *CLOSED,
    ]
    assert verified(tmp_path / "a.db", model) > 0


async def test_every_event_stands_at_the_turn_and_step_that_were_open(tmp_path: Path) -> None:
    model = FakeModel([calls(("look", {"at": "sky"})), words("Blue."), words("Again.")])
    async with session_of(tmp_path / "a.db", model, look) as session:
        await session.followup("one")
        await session.followup("two")
        await session.run()
    places = [
        (record.turn, record.step, record.event.kind)
        for record in records_of(tmp_path / "a.db")
        if record.event.kind in ("turn/start", "step/start", "step/end", "turn/end")
    ]
    assert places == [
        (1, None, "turn/start"),
        (1, 1, "step/start"),
        (1, 1, "step/end"),
        (1, 2, "step/start"),
        (1, 2, "step/end"),
        (1, None, "turn/end"),
        (2, None, "turn/start"),
        (2, 1, "step/start"),
        (2, 1, "step/end"),
        (2, None, "turn/end"),
    ]


async def test_claim_step_start_and_user_message_are_one_append(tmp_path: Path) -> None:
    """A death can find the message in the inbox or in the transcript, never in neither."""
    commits: list[int] = []

    def watch(name: str, session: str, seq: int) -> None:
        if name == "committed":
            commits.append(seq)

    async with session_of(tmp_path / "a.db", FakeModel([words("Hello.")]), on_boundary=watch) as session:
        await session.followup("hi")
        await session.run()
    claim = next(
        record.seq
        for record in records_of(tmp_path / "a.db")
        if isinstance(record.event, InboxSplice) and record.event.cause == "claimed"
    )
    message = next(r.seq for r in records_of(tmp_path / "a.db") if isinstance(r.event, UserMessage))
    assert not [seq for seq in commits if claim <= seq < message]
    assert message in commits


async def test_step_end_and_turn_end_are_one_append(tmp_path: Path) -> None:
    commits: list[int] = []
    async with session_of(
        tmp_path / "a.db",
        FakeModel([words("Hello.")]),
        on_boundary=lambda name, _, seq: commits.append(seq) if name == "committed" else None,
    ) as session:
        await session.followup("hi")
        await session.run()
    end = next(record.seq for record in records_of(tmp_path / "a.db") if isinstance(record.event, TurnEnd))
    assert end in commits
    assert end - 1 not in commits


async def test_a_turn_adds_up_the_usage_of_its_answers_and_gives_the_last_text(tmp_path: Path) -> None:
    first = [*words("Looking."), *calls(("look", {"at": "sky"})), Usage(input_tokens=10, output_tokens=3)]
    model = FakeModel([first, [*words("Blue."), Usage(input_tokens=20, output_tokens=5, cached_tokens=10)]])
    async with session_of(tmp_path / "a.db", model, look) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.text == "Blue."
    assert turn.usage == Usage(input_tokens=30, output_tokens=8, cached_tokens=10)


async def test_a_message_is_durable_and_readable_before_anything_runs(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        accepted = await session.followup("hi")
        assert session.pending == 1
        (splice,) = events_of(tmp_path / "a.db", InboxSplice)
        assert splice.message_id == accepted.message_id
        assert accepted.token == session.token


async def test_the_clean_end_of_a_session_leaves_it_closed_and_its_queue_waiting(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        await session.followup("later")
    assert kinds_of(tmp_path / "a.db") == [*OPENED, *ACCEPTED, *CLOSED]
    model = FakeModel([words("Now.")])
    async with session_of(tmp_path / "a.db", model) as session:
        assert session.pending == 1
        turn = await session.run()
    assert turn.text == "Now."
    assert [message.text for message in events_of(tmp_path / "a.db", UserMessage)] == ["later"]


async def test_two_sessions_of_one_kernel_do_not_mix(tmp_path: Path) -> None:
    model = FakeModel([words("Hello.")])
    async with (
        opened(tmp_path / "a.db", model) as kernel,
        kernel.session("one", model="fake:m") as one,
        kernel.session("two", model="fake:m") as two,
    ):
        await one.followup("to one")
        await two.followup("to two")
        assert (await two.run()).number == 1
        assert (await one.run()).number == 1
    for name in ("one", "two"):
        assert [m.text for m in events_of(tmp_path / "a.db", UserMessage, name)] == [f"to {name}"]
        assert verified(tmp_path / "a.db", model, name=name)
