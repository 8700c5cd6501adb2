"""A row that was damaged, or cannot be read, while its session is open: named as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from flightlog.store.connection import Row, Value
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import LogCorrupt, StoreError
from flightlog_hookspecs.events import SubagentSettled
from support.family import Family, child_of
from support.faulty_database import FaultyDatabase, under
from support.files import plain
from support.kernels import events_of, opened

LONG = "x" * 70_000


def disk_failed() -> StoreError:
    return StoreError("planted: the disk failed")


async def test_a_payload_that_cannot_be_read_just_now_is_a_fault_of_the_disk_and_no_damage(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup(LONG, key="k")
        faulty = under(kernel._store, disk_failed)
        for at in (1, 2):  # the row, then its payload
            faulty.arm("read", at)
            with pytest.raises(StoreError) as caught:
                await session.followup(LONG, key="k")
            assert type(caught.value) is StoreError
            assert "the disk failed" in str(caught.value)


@pytest.mark.parametrize("table", ["events", "blobs"])
async def test_a_damaged_row_that_is_looked_up_is_corrupt_by_name(tmp_path: Path, table: str) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup(LONG, key="k")
        with plain(path) as database:
            database.execute(f"DROP TRIGGER {table}_update")
            if table == "events":
                database.execute("UPDATE events SET data = '[]' WHERE kind = 'inbox/splice'")
            else:
                database.execute("UPDATE blobs SET bytes = x'00'")
        with pytest.raises(LogCorrupt) as caught:
            await session.followup(LONG, key="k")
        assert (caught.value.session, caught.value.seq) == ("s", 3)


async def test_a_damaged_message_is_found_before_it_is_sent(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([words("fine")])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup(LONG)
        with plain(path) as database:
            database.execute("DROP TRIGGER blobs_update")
            database.execute("UPDATE blobs SET bytes = x'00'")
        with pytest.raises(LogCorrupt):
            await session.run()
    assert model.requests == []


async def test_a_message_sent_again_is_never_accepted_twice_when_the_index_has_lost_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        first = await session.followup("once", key="k")
        await session.followup("other")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel._store, "read", lambda name, *arguments: [])
            with pytest.raises(LogCorrupt, match="index-whole"):
                await session.followup("once", key="k")
        assert session.pending == 2
        assert (await session.followup("once", key="k")).message_id == first.message_id


class Lying(FaultyDatabase):
    """Half of what is asked for of session number `of` is not brought, by this connection."""

    of = 0

    def read(self, name: str, *arguments: Value) -> list[Row]:
        rows = super().read(name, *arguments)
        if name != "events_page" or arguments[0] != self.of:
            return rows
        return [(*columns, data[: len(data) // 2], digest) for *columns, data, digest in rows]


class Beside:
    """A parent that left a child behind, which waits in a tool."""

    def __init__(self, folder: Path) -> None:
        self.began = trio.Event()

        async def look() -> str:
            """Look for as long as it is let."""
            self.began.set()
            await trio.sleep_forever()
            return ""

        start = [calls(("scout", {"task": "look"})), words("Started."), words("I see.")]
        self.family = Family(
            folder, start, [calls(("look", {})), words("Sky.")], tools=[Tool(body=look, effect="read")], background=True
        )
        self.path = self.family.path

    async def left(self) -> None:
        """Run up to there."""
        async with self.family.session() as session:
            await session.followup("go")
            await session.run()
            await self.began.wait()

    def settled(self) -> list[str]:
        """How the child has ended, as its parent knows."""
        return [event.reason for event in events_of(self.path, SubagentSettled)]


async def test_a_child_whose_log_is_damaged_has_ended_so_and_its_parent_goes_on(tmp_path: Path) -> None:
    beside = Beside(tmp_path)
    await beside.left()
    with plain(beside.path) as database:
        database.execute("DROP TRIGGER events_update")
        database.execute("UPDATE events SET data = '[]' WHERE session = 2 AND seq = 3")
    async with beside.family.session() as session:
        turn = await session.run(children=True)
    assert turn is not None
    assert turn.text == "I see."
    assert beside.settled() == ["error"]


async def test_a_read_that_lies_of_the_log_of_a_child_stops_the_kernel_and_does_not_end_the_child(
    tmp_path: Path,
) -> None:
    beside = Beside(tmp_path)
    await beside.left()
    async with beside.family.kernel() as kernel:
        lying = Lying(kernel._store.database)
        kernel._store.database = lying
        key = kernel._store.key_of(child_of(beside.path))
        assert key is not None
        lying.of = key.key
        async with kernel.session("s", model="fake:m") as session:
            with pytest.raises(StoreError, match="something else than the file holds"):
                await session.run(children=True)
        assert kernel._store.stopped
    assert beside.settled() == []
    async with beside.family.session() as session:
        turn = await session.run(children=True)
    assert turn is not None
    assert turn.text == "I see."
    assert beside.settled() == ["completed"]
