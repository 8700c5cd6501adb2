"""pandas on a log that is being written: in another process, and in the very process that writes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import HeadToken
from flightlog.store.statements import view_descriptions
from support.agents import Agent, assert_whole, driven, turn_of
from support.files import Child, look, outcome, rich

pytestmark = pytest.mark.kill

TABLES = ("events", "session_keys", "delta_texts", "blobs", "letters")


def frames(path: Path) -> dict[str, int]:
    """How many rows pandas reads from each table and view, over a connection of its own."""
    import pandas as pd

    with closing(sqlite3.connect(path)) as connection:
        return {
            name: len(pd.read_sql_query(f"SELECT * FROM {name}", connection))
            for name in (*TABLES, *view_descriptions())
        }


def test_every_table_and_view_is_read_while_an_agent_works(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    rich(path)
    with Agent(path, "live") as agent:
        before = outcome(frames, path)
        agent.goes_on()
        after = outcome(frames, path)
        assert all(after[name] > before[name] > 0 for name in ("events", "messages", "tool_calls", "timeline"))
        agent.kill()
    assert_whole(path, agent)


def work_and_read(channel: Connection[Any, Any], path: Path) -> None:
    """Run turns, and read all of the log with pandas between and during them, in this one process."""
    trio.run(_work_and_read, channel, path)


async def _work_and_read(channel: Connection[Any, Any], path: Path) -> None:
    async with driven(path) as session:
        channel.send(await turn_of(session))
        while channel.recv():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, frames, path)
                channel.send(await turn_of(session))
            frames(path)
            channel.send(await turn_of(session))


def come_and_go(channel: Connection[Any, Any], path: Path, name: str) -> None:
    """A second owner on the same file, closing cleanly."""
    trio.run(_come_and_go, path, name)


async def _come_and_go(path: Path, name: str) -> None:
    async with driven(path, name) as session:
        await turn_of(session)


@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_the_owner_itself_may_read_its_log_with_pandas_while_others_come_and_go(tmp_path: Path, end: str) -> None:
    path = tmp_path / "log.db"
    tokens: list[HeadToken] = []
    with Child(work_and_read, path) as owner:
        tokens.append(owner.receive())
        for number in range(3):
            owner.send(True)
            tokens += [owner.receive(), owner.receive()]
            outcome(look, path)
            with Child(come_and_go, path, f"t{number}") as other:
                assert other.rest() == []
                other.wait()
        owner.send(True)
        tokens += [owner.receive(), owner.receive()]
        if end == "leaves":
            owner.send(False)
            owner.wait()
        else:
            owner.kill()
    outcome(look, path)
    assert_whole(path, ("s", tokens))
    assert outcome(frames, path)["sessions"] == 4


def test_appending_a_frame_to_a_table_is_refused(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "log.db"
    rich(path)
    with Agent(path, "live") as agent, closing(sqlite3.connect(path, timeout=30)) as connection:
        for table in TABLES:
            frame = pd.read_sql_query(f"SELECT * FROM {table}", connection)
            with pytest.raises(pd.errors.DatabaseError) as caught:
                frame.to_sql(table, connection, if_exists="append", index=False)
            assert "append-only" in str(caught.value.__cause__)
            connection.rollback()
        agent.goes_on()
        agent.leave()
    assert_whole(path, agent)
