"""What a model is sent is what the log says, byte for byte; any difference stops the request."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Session, tool
from flightlog.core.state import State
from flightlog.store.connection import Row, Value
from flightlog.testing import Attempts, Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import Finish, Head, Message, PromptSection, TextBlock, Tool
from flightlog_hookspecs.errors import InvariantViolation, ProviderError, StoreError, StoreStopped
from flightlog_hookspecs.events import RequestHeader, RequestSent, ToolResult, TurnEnd, UserMessage
from support.faulty_database import FaultyDatabase
from support.kernels import SOON, events_of, opened, records_of, session_of, verified
from support.memory_folder import subfolder


@tool(mode="parallel", effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


@tool(effect="write")
async def fail() -> str:
    """Fail."""
    raise ValueError("broken")


CALLS = st.sampled_from(
    [("look", {"at": "sky"}), ("look", {"at": 3}), ("look", "[1]"), ("look", '{"at": "cu'), ("fail", {}), ("nope", {})]
)
STEP = st.tuples(st.text(max_size=20), st.lists(CALLS, max_size=3))
FAILURE = st.sampled_from(["server", "cut", "auth"])
WORDS = st.text(max_size=20).filter(str.strip)
TURN = st.tuples(WORDS, st.lists(st.tuples(STEP, st.lists(FAILURE, max_size=2)), min_size=1, max_size=3))


def reply(step: tuple[str, list[tuple[str, object]]], failures: list[str]) -> Attempts:
    """A step's reply: attempts that fail, then the answer."""
    said, wanted = step
    answer: list[Cue] = [*(words(said) if said else []), *calls(*wanted)]
    failing = [[*words("wasted"), ProviderError(kind, "planted")] for kind in failures]
    return Attempts((*failing, answer or words("nothing")))


@given(turns=st.lists(TURN, min_size=1, max_size=3), reopen=st.booleans())
async def test_every_request_is_rebuilt_from_the_log_byte_for_byte(
    turns: list[tuple[str, list[tuple[tuple[str, list[tuple[str, object]]], list[str]]]]],
    reopen: bool,
    tmp_path: Path,
) -> None:
    path = subfolder(tmp_path) / "a.db"
    model = FakeModel([reply(step, failures) for _, steps in turns for step, failures in steps])
    if reopen:
        for text, _ in turns:
            async with session_of(path, model, look, fail, plugins=[SOON]) as session:
                await session.followup(text)
                await session.run()
    else:
        async with session_of(path, model, look, fail, plugins=[SOON]) as session:
            for text, _ in turns:
                await session.followup(text)
            await session.run()
    sent = [record for record in records_of(path) if isinstance(record.event, RequestSent)]
    assert len(sent) == len(model.requests)
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model], tools=[look, fail])]) as log:
        reader = log.session("s")
        for record, fragments in zip(sent, model.requests, strict=True):
            rebuilt = reader.request(record.turn, record.step, record.event.attempt)
            assert rebuilt.fragments == fragments
            assert rebuilt.proven is True
            assert rebuilt.seq == record.seq
        assert reader.verify() == len(records_of(path))
    for before, after in pairwise(model.requests):
        assert after[: len(before)] == before  # nothing that was sent is ever rewritten


def swapped(order: tuple[int, ...]) -> tuple[list[Tool], Callable[[], object]]:
    """Three tools that finish in `order`, and what starts them doing so."""
    gates = [trio.Event() for _ in range(3)]
    ended = [trio.Event() for _ in range(3)]

    def made(number: int) -> Tool:
        async def body() -> str:
            await gates[number].wait()
            ended[number].set()
            return f"result {number}"

        return Tool(body=body, name=f"t{number}", description="Wait.", mode="parallel", effect="read")

    async def direct() -> None:
        for number in order:
            await trio.testing.wait_all_tasks_blocked()
            gates[number].set()
            await ended[number].wait()

    return [made(number) for number in range(3)], direct


async def test_the_request_has_the_same_bytes_whatever_order_the_tools_finish_in(tmp_path: Path) -> None:
    requests, finishing = set(), set()
    for order in permutations(range(3)):
        path = tmp_path / f"{order}.db"
        tools, direct = swapped(order)
        model = FakeModel([calls(("t0", {}), ("t1", {}), ("t2", {}))])
        async with session_of(path, model, *tools) as session, trio.open_nursery() as nursery:
            await session.followup("hi")
            nursery.start_soon(direct)
            await session.run()
        requests.add(model.requests[1])
        finishing.add(tuple(result.position for result in events_of(path, ToolResult)))
        assert verified(path, model)
    assert len(finishing) == 6, "the orders differed in the log"
    assert len(requests) == 1, "and not in the request"


def set_state(session: Session, state: State) -> None:
    session._journal.reached = evolve(session._journal.reached, state=state)


def drop_last_message(session: Session) -> None:
    session._journal.history._entries.pop()


def alter_last_message(session: Session) -> None:
    entries = session._journal.history._entries
    place, message = entries[-1]
    entries[-1] = (place, evolve(message, content=(TextBlock(text="forged"),)))


def add_a_message(session: Session) -> None:
    session._journal.history.add(UserMessage(message_id="x", content=(TextBlock(text="forged"),)), 10_000)


def alter_the_system_text(session: Session) -> None:
    state = session._journal.state
    head = evolve(state.header.head, system="You are evil.")
    set_state(session, evolve(state, header=evolve(state.header, head=head)))


def alter_the_tools(session: Session) -> None:
    state = session._journal.state
    head = evolve(state.header.head, tools=())
    set_state(session, evolve(state, header=evolve(state.header, head=head)))


def forget_the_header_row(session: Session) -> None:
    state = session._journal.state
    set_state(session, evolve(state, header_seq=state.header_seq + 1, header=evolve(state.header)))


@pytest.mark.parametrize(
    "tamper",
    [
        drop_last_message,
        alter_last_message,
        add_a_message,
        alter_the_system_text,
        alter_the_tools,
        forget_the_header_row,
    ],
)
async def test_a_request_that_differs_from_the_log_is_not_sent(
    tmp_path: Path, tamper: Callable[[Session], None]
) -> None:
    held: list[Session] = []

    def watch(name: str, _: str, seq: int) -> None:
        # Once the result is committed, before the next request is derived.
        if held and name == "committed" and len(held[0]._journal.history) == 3:
            tamper(held.pop())

    model = FakeModel([calls(("look", {"at": "sky"}))])
    async with session_of(tmp_path / "a.db", model, look, on_boundary=watch) as session:
        held.append(session)
        await session.followup("hi")
        with pytest.raises(InvariantViolation):
            await session.run()
    assert not held
    assert len(model.requests) == 1
    assert [end.code for end in events_of(tmp_path / "a.db", TurnEnd)] == ["InvariantViolation"]
    model.requests.clear()
    async with session_of(tmp_path / "a.db", model, look) as session:
        await session.followup("again")
        assert (await session.run()).reason == "completed"
    assert verified(tmp_path / "a.db", model)


Lie = Callable[[list[Row]], list[Row]]


def brings_less(rows: list[Row]) -> list[Row]:
    return rows[:-1]


def brings_more(rows: list[Row]) -> list[Row]:
    return [*rows, rows[-1]]


def brings_other_words(rows: list[Row]) -> list[Row]:
    *before, text, data = rows[-1]
    return [*rows[:-1], (*before, "?" * len(text), data)]


def brings_nonsense(rows: list[Row]) -> list[Row]:
    return [*rows[:-1], (*rows[-1][:-1], "{")]


@pytest.mark.parametrize(
    ("name", "lie", "at"),
    [("event_at", brings_less, 0)]
    + [
        ("messages_between", lie, at)
        for lie in (brings_less, brings_more, brings_other_words, brings_nonsense)
        for at in (0, 1)
    ],
)
async def test_a_read_that_lies_stops_the_kernel_and_does_not_end_the_turn(
    tmp_path: Path, name: str, lie: Lie, at: int
) -> None:
    """SQLite keeps what a read brought, so the lie lasts as long as the connection; the log is whole."""
    model = FakeModel([calls(("look", {"at": "sky"})), words("It is blue.")])
    async with session_of(tmp_path / "a.db", model, look) as session:
        store = session._journal.store

        class Lying(FaultyDatabase):
            def read(self, query: str, *arguments: Value) -> list[Row]:
                rows = super().read(query, *arguments)
                return lie(rows) if query == name and len(model.requests) == at else rows

        store.database = Lying(store.database)
        await session.followup("hi")
        with pytest.raises(StoreError, match="something else than the file holds"):
            await session.run()
        assert store.stopped
        with pytest.raises(StoreStopped):
            await session.followup("more")
    assert len(model.requests) == at
    assert not events_of(tmp_path / "a.db", TurnEnd)
    async with session_of(tmp_path / "a.db", model, look, on_crash="continue") as session:
        assert (await session.run()).text == "It is blue."
    assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["completed"]
    assert verified(tmp_path / "a.db", model)


async def test_what_was_sent_before_is_proven_anew_when_the_head_changes(tmp_path: Path) -> None:
    """A new head encodes everything again, so all of it must be compared again."""
    model = FakeModel([words("a"), words("b")])
    async with opened(tmp_path / "a.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("hi")
        await session.run()
        place, message = session._journal.history._entries[0]
        session._journal.history._entries[0] = (place, evolve(message, content=(TextBlock(text="forged"),)))
        registration = kernel.register(Bundle(tools=[look]))
        await session.followup("again")
        with pytest.raises(InvariantViolation):
            await session.run()
        await registration.aclose()
    assert len(model.requests) == 1


class Changing:
    """A session opened again and again, each time a little different."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = FakeModel([])

    async def turn(self, *tools: Tool, system: str = "", model: str = "fake:m") -> tuple[bytes, ...]:
        """Run one turn; returns its first request."""
        before = len(self.model.requests)
        async with (
            opened(self.path, self.model, *tools) as kernel,
            kernel.session("s", model=model, system=system) as session,
        ):
            await session.followup("hi")
            await session.run()
        return self.model.requests[before]


async def test_a_changed_head_is_logged_at_the_next_turn_and_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    session = Changing(tmp_path / "a.db")
    first = await session.turn(look)
    same = await session.turn(look)
    tools = await session.turn(look, fail)
    model = await session.turn(look, fail, model="fake:other")
    back = await session.turn(look)
    headers = [event.reason for event in events_of(tmp_path / "a.db", RequestHeader)]
    assert headers == ["first", "tools", "model", "model, tools"]
    requests = [first, same, tools, model, back]
    for before, after in pairwise(requests):
        assert after[1 : len(before)] == before[1:], "the conversation is sent as it was before"
    assert same[0] == first[0] == back[0] != tools[0] != model[0]
    assert verified(tmp_path / "a.db", session.model)


async def test_sections_stand_by_rank_then_name_behind_the_hosts_system_text(tmp_path: Path) -> None:
    sections = [
        PromptSection(name="b", rank=2, render=lambda: "third"),
        PromptSection(name="a", rank=2, render=lambda: "second"),
        PromptSection(name="z", rank=1, render=lambda: "first"),
        PromptSection(name="n", rank=0, render=lambda: ""),
    ]
    model = FakeModel([])
    async with (
        opened(tmp_path / "a.db", model, sections=sections) as kernel,
        kernel.session("s", model="fake:m", system="host") as session,
    ):
        await session.followup("hi")
        await session.run()
        assert kernel.read("s").request(1, 1).head.system == "host\n\nfirst\n\nsecond\n\nthird"


async def test_an_adapter_that_encodes_differently_later_is_found_by_verify(tmp_path: Path) -> None:
    class Drifting(FakeModel):
        version = 1

        def encode(self, part: Head | Message) -> bytes:
            return super().encode(part) + str(self.version).encode()

    model = Drifting([words("one"), [*words("two"), Finish(reason="stop")]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        await session.run()
    assert verified(tmp_path / "a.db", model)
    model.version = 2
    with flightlog.open_log(tmp_path / "a.db", discover=False, plugins=[Bundle(adapters=[model])]) as log:
        assert log.session("s").request(1, 1).proven is False
        with pytest.raises(flightlog.errors.LogCorrupt, match="request-derivable"):
            log.session("s").verify()
    with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
        assert log.session("s").request(1, 1).proven is None
        assert log.session("s").verify()
