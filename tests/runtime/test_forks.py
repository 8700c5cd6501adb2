"""Going on from an earlier turn: the same conversation to the model, and nothing of what was not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog.errors import UsageError
from flightlog.testing import Attempts, FakeModel, calls, words
from flightlog_hookspecs import tool
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import InboxSplice, SessionCreated
from support import kernels


@tool
def look(at: str) -> str:
    """Look at something."""
    return at * 30_000


def model() -> FakeModel:
    return FakeModel(
        [
            [*words("I look."), *calls(("look", {"at": "abc"}), ("look", {"at": "de"}))],
            Attempts([[ProviderError("server", "down")], words("Seen.")]),
            words("second"),
            words("third"),
        ]
    )


async def talked(path: Path, turns: int = 2) -> None:
    async with kernels.session_of(path, model(), look, plugins=[kernels.SOON]) as session:
        for number in range(turns):
            await session.followup(f"message {number}")
            assert (await session.run()).reason == "completed"
        await session.followup("still waiting")


@pytest.mark.parametrize("turn", [1, 2])
async def test_the_next_request_of_a_fork_has_the_bytes_its_origin_would_send(turn: int, tmp_path: Path) -> None:
    await talked(tmp_path / "a.db")
    await talked(tmp_path / "origin.db", turns=turn)
    fake = model()
    async with kernels.opened(tmp_path / "a.db", fake, look) as kernel:
        await kernel.fork("s", turn, "f")
        async with kernel.session("f", model="fake:m") as fork:
            await fork.followup("and now")
            await fork.run()
    (asked,) = fake.requests
    fake = model()
    async with kernels.session_of(tmp_path / "origin.db", fake, look) as session:
        await session.followup("and now")
        await session.run()
    assert asked[:-1] == fake.requests[0][:-1]
    assert b"and now" in asked[-1]
    assert kernels.verified(tmp_path / "a.db", model(), name="f")
    assert kernels.kinds_of(tmp_path / "a.db", "f").count("request/header") == 1


async def test_a_fork_names_its_origin_and_inherits_no_inbox(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path)
    async with kernels.opened(path, model(), look) as kernel:
        await kernel.fork("s", 1, "f", title="another way")
        origin = kernel.read("s")
    (created,) = kernels.events_of(path, SessionCreated, "f")
    assert (created.origin_session, created.origin_uid, created.origin_turn) == ("s", origin.uid, 1)
    assert created.title == "another way"
    assert created.uid != origin.uid
    assert not kernels.events_of(path, InboxSplice, "f")


async def test_forking_changes_nothing_of_the_origin(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path)
    before = kernels.records_of(path)
    async with kernels.opened(path, model(), look) as kernel:
        await kernel.fork("s", 1, "f")
    assert kernels.records_of(path) == before


@pytest.mark.parametrize("turn", [0, 3])
async def test_a_turn_that_was_not_completed_is_refused_and_nothing_is_entered(turn: int, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path)
    async with kernels.opened(path, model(), look) as kernel:
        with pytest.raises(UsageError, match="2 completed turns"):
            await kernel.fork("s", turn, "f")
        with pytest.raises(UsageError, match="no session"):
            kernel.read("f")


async def test_a_fork_inside_the_open_turn_of_a_running_session_is_refused(tmp_path: Path) -> None:
    refused = []

    @tool
    async def fork_me() -> str:
        """Fork the session this call belongs to."""
        for turn, name in ((2, "open"), (1, "closed")):
            try:
                await kernel.fork("s", turn, name)
            except UsageError as error:
                refused.append((name, str(error)))
        return "done"

    fake = FakeModel([words("one"), calls(("fork_me", {}))])
    async with kernels.opened(tmp_path / "a.db", fake, fork_me) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            for text in ("first", "second"):
                await session.followup(text)
                assert (await session.run()).reason == "completed"
        assert [name for name, _ in refused] == ["open"]
        kernel.read("closed").verify()


async def test_a_name_that_is_taken_or_impossible_is_refused(tmp_path: Path) -> None:
    await talked(tmp_path / "a.db")
    async with kernels.opened(tmp_path / "a.db", model(), look) as kernel:
        with pytest.raises(UsageError, match="already"):
            await kernel.fork("s", 1, "s")
        with pytest.raises(UsageError, match="printable"):
            await kernel.fork("s", 1, "")
        with pytest.raises(UsageError, match="no session"):
            await kernel.fork("x", 1, "f")
