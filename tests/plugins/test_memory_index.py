"""Another index than the one in the box: here a toy that finds by meaning, with vectors as an embedding has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from attrs import define, field

import flightlog
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs.events import ToolResult, UserMessage
from flightlog_plugins.memory import IndexWriter, Memory, MemoryIndex, Remembered, Unusable
from support.kernels import events_of, opened, session_of, verified
from support.workspaces import call_in

SIMILAR_MIN = 0.3


def embedded(text: str) -> list[float]:
    """A vector of length one: how often each three neighbours stand in `text`, by their hash."""
    vector = [0.0] * 256
    for start in range(len(text) - 2):
        vector[crc32(text[start : start + 3].lower().encode()) % 256] += 1.0
    length = math.hypot(*vector) or 1.0
    return [part / length for part in vector]


@define
class Vectors:
    """A `MemoryIndex` in memory. It is empty, and says so, until it is made of the log."""

    held: dict[tuple[str, str, str], tuple[Remembered, str]] | None = field(default=None)
    rows: dict[str, int] = field(factory=dict)
    rebuilds: int = 0

    def search(self, words: str, *, subject: str, beside: str, limit: int) -> list[Remembered]:
        wanted, scored = embedded(words), []
        for found, whose in self._sound().values():
            score = sum(map(float.__mul__, wanted, embedded(found.text)))
            if whose == subject and found.session != beside and score > SIMILAR_MIN:
                scored.append((score, found))
        return [found for _, found in sorted(scored, key=lambda each: -each[0])][:limit]

    def followed(self) -> dict[str, int]:
        self._sound()
        return dict(self.rows)

    @contextmanager
    def writing(self) -> Iterator[IndexWriter]:
        new = Vectors(dict(self._sound()), dict(self.rows))
        yield new
        self.held, self.rows = new.held, new.rows

    def rebuild(self, fill: Callable[[IndexWriter], None], *, unless_sound: bool = False) -> None:
        if unless_sound and self.held is not None:
            return
        new = Vectors({})
        fill(new)
        self.held, self.rows, self.rebuilds = new.held, new.rows, self.rebuilds + 1

    def add(self, found: Remembered, subject: str) -> None:
        key = (found.session, "", "") if found.concludes else (subject, found.kind, found.text)
        if found.concludes:
            self._sound()[key] = found, subject
        else:
            self._sound().setdefault(key, (found, subject))

    def follow(self, session: str, seq: int) -> None:
        self.rows[session] = seq

    def _sound(self) -> dict[tuple[str, str, str], tuple[Remembered, str]]:
        if self.held is None:
            raise Unusable("it was never made")
        return self.held


def memory_of(folder: Path, index: MemoryIndex) -> Memory:
    return Memory(index, log=lambda: flightlog.open_log(folder / "a.db", discover=False))


async def test_an_index_by_meaning_takes_the_place_of_the_one_by_words(tmp_path: Path) -> None:
    path, index = tmp_path / "a.db", Vectors()
    note = {"text": "The staging database is called heron.", "kind": "knowledge"}
    model = FakeModel([calls(("remember", note))])
    async with session_of(path, model, name="one", plugins=[memory_of(tmp_path, index)]) as session:
        await session.followup("Find out about databases.")
        await session.run()
    async with opened(path, FakeModel([words("It takes an hour.")]), plugins=[memory_of(tmp_path, index)]) as kernel:
        await kernel.tasks.submit("Restart the cluster", model="fake:m")
        await kernel.work(until_idle=True)
    model = FakeModel([calls(("recall", {"query": "clusters, restarting"}))])
    async with session_of(path, model, name="two", plugins=[memory_of(tmp_path, index)]) as session:
        await session.followup("Which of the databases is for stagings?")
        await session.run()
    (told,) = [event.text for event in events_of(path, UserMessage, "two") if event.section == "memory"]
    assert "heron" in told
    assert "an hour" in events_of(path, ToolResult, "two")[-1].text
    assert verified(path, model, name="two"), "what it said stands in the log, so each request can be made again"
    assert index.rebuilds == 1, "it was made once, and followed since"


async def test_an_index_that_is_lost_is_made_anew_of_the_log(tmp_path: Path) -> None:
    path, index = tmp_path / "a.db", Vectors()
    model = FakeModel([calls(("remember", {"text": "The database is heron.", "kind": "knowledge"}))])
    async with session_of(path, model, plugins=[memory_of(tmp_path, index)]) as session:
        await session.followup("hi")
        await session.run()
    held = index.held
    for lost in (Vectors(), Vectors({("", "", ""): (Remembered(kind="", text="odd", session="", at_us=0), "")})):
        memory = memory_of(tmp_path, lost)
        memory.rebuild()
        assert lost.held == held
        assert "heron" in memory.recall(call_in(tmp_path), "the databases")
