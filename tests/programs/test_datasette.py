"""Datasette serves a log that an agent is writing: every table and view, as JSON and as a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import pytest
from attrs import frozen

from flightlog.store.statements import view_descriptions
from support.agents import WAIT_MAX_S, Agent, assert_whole
from support.children import closing_process
from support.files import rich

pytestmark = pytest.mark.kill

LOGS = ("watched", "killed", "left", "frozen")
TABLES = ("events", "session_keys", "delta_texts", "blobs", "letters", "open_mark")


@frozen
class Datasette:
    """A running server, over one file per test."""

    folder: Path
    address: str

    def path(self, log: str) -> Path:
        """The file that is served as `log`."""
        return self.folder / f"{log}.db"

    def fetch(self, page: str) -> str:
        """What it answers; an error status raises."""
        with build_opener(ProxyHandler({})).open(f"{self.address}/{page}", timeout=WAIT_MAX_S) as answer:
            return str(answer.read().decode())

    def rows(self, log: str, sql: str) -> list[dict[str, Any]]:
        """The rows of a query, through its JSON interface."""
        rows: list[dict[str, Any]] = json.loads(self.fetch(f"{log}.json?_shape=array&sql={quote(sql)}"))
        return rows


@pytest.fixture(scope="module")
def datasette() -> Iterator[Datasette]:
    """One server for all tests here; one of its files is served as one that never changes."""
    with tempfile.TemporaryDirectory(prefix="flightlog-datasette-") as name:
        folder = Path(name)
        for log in LOGS:
            rich(folder / f"{log}.db")
        *live, frozen = (str(folder / f"{log}.db") for log in LOGS)
        process = subprocess.Popen(
            [sys.executable, "-m", "datasette", "serve", *live, "-i", frozen, "--port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with closing_process(process):
            assert process.stderr is not None
            said = []
            while line := process.stderr.readline():
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            assert found, "".join(said)
            yield Datasette(folder, found[0])


def test_every_table_and_view_is_served_while_an_agent_works(datasette: Datasette) -> None:
    with Agent(datasette.path("watched")) as agent:
        for name in (*TABLES, *view_descriptions()):
            assert "<h1" in datasette.fetch(f"watched/{name}")
            assert isinstance(json.loads(datasette.fetch(f"watched/{name}.json?_shape=array&_size=5")), list)
        agent.goes_on()
        found = datasette.rows("watched", "SELECT last_seq FROM sessions WHERE session = 's'")
        assert found[0]["last_seq"] >= agent.tokens[-1].seq, "it shows what was acknowledged before it was asked"
        agent.goes_on()
        agent.leave()
    assert_whole(datasette.path("watched"), agent)


@pytest.mark.parametrize(("log", "end"), [("killed", Agent.kill), ("left", Agent.leave)])
def test_an_agent_that_ends_while_it_is_looked_at_loses_nothing(
    datasette: Datasette, log: str, end: Callable[[Agent], None]
) -> None:
    for _ in range(2):
        with Agent(datasette.path(log)) as agent:
            assert datasette.rows(log, "SELECT count(*) AS n FROM events")[0]["n"] > 0
            end(agent)
        found = datasette.rows(log, "SELECT last_seq FROM sessions WHERE session = 's'")
        assert found[0]["last_seq"] >= agent.tokens[-1].seq
        assert_whole(datasette.path(log), agent)


def test_a_log_served_as_immutable_may_look_old_but_is_not_harmed(datasette: Datasette) -> None:
    with Agent(datasette.path("frozen")) as agent:
        assert "<h1" in datasette.fetch("frozen/sessions")
        agent.goes_on()
        agent.kill()
    assert_whole(datasette.path("frozen"), agent)


def test_a_server_that_refuses_a_live_log_without_locks_does_it_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent:
        command = [sys.executable, "-m", "datasette", "serve", str(path), "--nolock", "--get", "/log/sessions.json"]
        subprocess.run(command, capture_output=True, check=False, timeout=WAIT_MAX_S)
        agent.goes_on()
        agent.kill()
    assert_whole(path, agent)
