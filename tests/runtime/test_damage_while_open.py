"""A row that was damaged, or cannot be read, while its session is open: named as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog.testing import FakeModel, words
from flightlog_hookspecs.errors import LogCorrupt, StoreError
from support.faulty_database import under
from support.files import plain
from support.kernels import opened

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
