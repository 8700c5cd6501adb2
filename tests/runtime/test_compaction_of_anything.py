"""Any conversation in any room: what the model is sent fits, and whoever reads the log sees what was sent."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define, field, frozen
from hypothesis import event, given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits, Session
from flightlog.core.fitting import Measure, Wish, cost, head_cost, least, shorter
from flightlog.core.history import History
from flightlog.runtime.past import Past
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import (
    BlockEnd,
    BlockEvent,
    BlockStart,
    Compactor,
    FileBlock,
    Head,
    Message,
    Request,
    ThinkingBlock,
    Tool,
    ToolOutput,
)
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    CompactionEnd,
    Event,
    Record,
    RequestHeader,
    RequestSent,
    StepStart,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.conversation import assert_conversation
from support.kernels import records_of, session_of
from support.long_work import INSTRUCTION, is_summary
from support.memory_folder import subfolder

CAT = FileBlock.of(b"a cat", name="cat.png")


@frozen
class Step:
    """What the model thinks and says, and what its calls come to: so many pieces each, or a picture (None)."""

    thinks: bool
    says: str
    results: tuple[tuple[str, int] | None, ...]


@frozen
class Turn:
    """What a person says, and what is done about it. What is steered comes in between."""

    asks: str
    steps: tuple[Step, ...]
    picture: bool
    steers: str


PIECES = st.sampled_from(
    ["and so on ", "然后天空变蓝了", '{"key": [1, 2, 3]}, ', "def f(x): return x\n", "Ünïcødé 🙂 "]
)
WORDS = st.builds(lambda piece, times: piece * times, PIECES, st.sampled_from([1, 1, 5, 40]))
RESULTS = st.tuples(PIECES, st.sampled_from([100, 20, 1, 0])) | st.none()
STEPS = st.builds(Step, thinks=st.booleans(), says=WORDS, results=st.lists(RESULTS, min_size=1, max_size=3).map(tuple))
TURNS = st.builds(
    Turn,
    asks=WORDS,
    steps=st.lists(STEPS, min_size=2, max_size=6).map(tuple),
    picture=st.sampled_from([False, False, False, True]),
    steers=st.just("") | WORDS,
)
SUMMARIES = st.lists(st.sampled_from(["short", "empty", "long", "error", "calls"]), min_size=1, max_size=3)


@define
class Talker(FakeModel):
    """Plays `turns`; asked for summaries, it takes those of `summaries` in turn. `sent` are the requests of turns."""

    replies: Sequence[Sequence[Cue]] = ()
    steps: list[Step | None] = field(factory=list)
    summaries: Sequence[str] = ()
    room: int = 10**6
    bound_thinking: bool = False
    sent: list[tuple[bytes, ...]] = field(factory=list, init=False)
    asked: int = field(default=0, init=False)
    at: int = field(default=0, init=False)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """What comes next."""
        messages = list(request.messages)
        if messages[-1].text == INSTRUCTION:
            self._look(messages[:-1])
            self.asked += 1
            yield self._play(_summary(self.summaries[self.asked % len(self.summaries)], self.asked))
            return
        self._look(messages)
        assert self._least(request) <= self.room
        self.sent.append(tuple(request.fragments))
        self.at += 1
        step = self.steps[self.at - 1]
        yield self._play(words("That is all.", chunk=40) if step is None else _said(step, self.at - 1))

    def _least(self, request: Request) -> int:
        """Its tokens; without all thinking, where some of it is not sent."""
        return head_cost(request.head) + sum(cost(each, thinking=not self.bound_thinking) for each in request.messages)

    def _look(self, messages: Sequence[Message]) -> None:
        assert_conversation(messages)
        assert [index for index, message in enumerate(messages) if is_summary(message)] in ([], [0])


def _summary(kind: str, number: int) -> Sequence[Cue]:
    match kind:
        case "error":
            return [ProviderError("overloaded", "busy")]
        case "calls":
            return calls(("look", {"step": 0, "result": 0}))
        case "long":
            return words("and much more was said " * 2000, chunk=50_000)
        case _:
            return words(f"summary {number}" if kind == "short" else " ", chunk=40)


def _said(step: Step, number: int) -> list[Cue]:
    thought = BlockEnd(index=0, block=ThinkingBlock(text="I think and think.", replay='{"signature":"x"}'))
    thinking = [BlockStart(index=0, type="thinking"), thought] if step.thinks else []
    wanted = [("look", {"step": number, "result": result}) for result in range(len(step.results))]
    return [*thinking, *words(step.says, chunk=1000, index=1), *calls(*wanted, start=2)]


def looking(model: Talker) -> Tool:
    """A tool whose results are those of the model's steps."""

    async def look(step: int, result: int) -> object:
        played = model.steps[step]
        assert played is not None, "only steps with results make calls"
        found = played.results[result]
        return ToolOutput((CAT,)) if found is None else found[0] * found[1]

    return Tool(body=look, name="look", description="Look.", mode="parallel", effect="read")


def seen(records: Sequence[Record]) -> list[Message]:
    """What the model is sent after these, by the twin of the view."""
    history = History()
    for record in records:
        history.add(record.event, record.seq)
    return [message for _, message in history.since(0)]


@given(
    turns=st.lists(TURNS, min_size=1, max_size=4),
    summaries=SUMMARIES,
    room=st.sampled_from([800, 1500, 3000, 6000, 100]),
    keep_steps=st.integers(0, 3),
    summarises=st.booleans(),
    bound_thinking=st.booleans(),
)
async def test_what_is_sent_fits_and_is_what_the_log_says_in_whatever_copy_of_it(
    turns: list[Turn],
    summaries: list[str],
    room: int,
    keep_steps: int,
    summarises: bool,
    bound_thinking: bool,
    tmp_path: Path,
) -> None:
    folder = subfolder(tmp_path)
    path = folder / "a.db"
    model = Talker(summaries=summaries, room=room, bound_thinking=bound_thinking)
    compactor = Compactor(name="any", instruction=INSTRUCTION if summarises else "", keep_steps=keep_steps)
    plugins = [Bundle(compactors=[compactor])]
    limits = Limits(context_tokens=room)
    async with session_of(path, model, looking(model), plugins=plugins, limits=limits) as session:
        for turn in turns:
            model.steps = [*model.steps[: model.at], *turn.steps, None, None]
            asks = text_blocks(turn.asks)
            await session.followup((*asks, CAT) if turn.picture else asks)
            if turn.steers:
                await session.inject(turn.steers)
            await session.run()
        held = [message for _, message in session._journal.history.since(0)]
        assert_looked_back(session, records_of(path))
    records = records_of(path)
    assert held == seen(records)
    assert_refusals(records, room)
    sizes = [end.event.outcome for end in records if isinstance(end.event, CompactionEnd)]
    event(f"compactions: {min(len(sizes), 3)}, done: {'done' in sizes}")

    adapters = [Bundle(adapters=[model])]
    exported = io.BytesIO()
    async with flightlog.open_kernel(path, discover=False, plugins=adapters) as kernel:
        reader = kernel.read("s")
        assert reader.messages() == held
        assert reader.verify() == len(records)
        reader.export(exported)
        sent = [record for record in records if isinstance(record.event, RequestSent)]
        assert len(sent) == len(model.sent)
        for record, fragments in zip(sent, model.sent, strict=True):
            assert record.turn is not None
            assert record.step is not None
            shown = reader.request(record.turn, record.step, record.event.attempt)  # type: ignore[union-attr]
            assert (shown.proven, shown.fragments) == (True, fragments)
        for end in [record for record in records if isinstance(record.event, TurnEnd)]:
            assert end.turn is not None
            await kernel.fork("s", end.turn, f"fork {end.turn}")
            fork = kernel.read(f"fork {end.turn}")
            assert [told(message) for message in fork.messages()] == [told(m) for m in seen(records[: end.seq])]
            fork.verify()
        async with kernel.session(f"fork {end.turn}") as session:
            assert_looked_back(session, records_of(path, f"fork {end.turn}"))
    exported.seek(0)
    async with flightlog.open_kernel(folder / "b.db", discover=False, plugins=adapters) as kernel:
        assert kernel.read(await kernel.import_session(exported)).messages() == held
        kernel.read("s").verify()


def assert_looked_back(session: Session, records: Sequence[Record]) -> None:
    """Each message can be read again by its number, and what stands for others names the right ones."""
    past, whole = Past(session._journal), History()
    for record in records:
        if not stands_for(record.event):
            whole.add(record.event, record.seq)
    messages = [message for _, message in whole.since(0)]
    assert [past.message(number) for number in range(len(messages) + 2)] == [None, *messages, None]
    for record in records:
        match record.event:
            case ToolResult(replaces=int(row)) as short:
                said = re.search(r", message (\d+)\.", short.text)
                assert said is not None
                assert past.message(int(said[1])) == records[row - 1].event
            case UserMessage(replaces_to=int(row)) as summary:
                said = re.search(r"messages 1 to (\d+),", summary.text)
                assert said is not None
                assert int(said[1]) == whole.until(row)
            case _:
                pass


def stands_for(event: Event) -> bool:
    """Whether it is in place of others."""
    return getattr(event, "replaces", None) is not None or getattr(event, "replaces_from", None) is not None


def told(message: Message) -> object:
    """What a model reads in it."""
    return type(message), message.content


def assert_refusals(records: Sequence[Record], room: int) -> None:
    """Turns end well, or say what does not fit; then nothing was sent, and no result can be said in fewer words."""
    history, head, step = History(), Head(adapter="", model=""), 0
    for record in records:
        history.add(record.event, record.seq)
        match record.event:
            case RequestHeader():
                head = record.event.head
            case StepStart():
                step = record.seq
            case TurnEnd(reason=reason) as end if reason != "completed":
                assert (reason, end.code) == ("error", "context_overflow")
                assert f", and {room} fit: " in end.message
                assert not any(isinstance(each.event, RequestSent) for each in records[step : record.seq])
                measure = Measure()
                measure.take(head, history, bound_thinking=False)
                untouched = least(history, measure, step) > room
                assert untouched or shorter(history, measure, step, 1, Wish(keep_steps=0, summarises=False)) is None
            case _:
                pass
