"""The sqlite3 shell on a log that agents are writing: it sees everything and harms nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightlog.store.statements import view_descriptions
from support.agents import Agent, assert_whole
from support.attacks import attacks, tables_of
from support.files import plain, rich
from support.shells import Shell

pytestmark = pytest.mark.kill

LOOK = "SELECT count(*) > 0 FROM events;"


def test_every_view_can_be_read_while_an_agent_works(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent:
        for view in view_descriptions():
            assert int(shell.told(path, f"SELECT count(*) FROM (SELECT * FROM {view});")[0]) >= 0
        assert {"events", "sessions"} <= set(" ".join(shell.told(path, ".tables")).split())
        assert any(line.startswith("INSERT INTO events") for line in shell.told(path, ".dump events"))
        agent.goes_on()
        agent.leave()
    assert_whole(path, agent)


@pytest.mark.parametrize("kept", ["SELECT 1;", "BEGIN; SELECT count(*) FROM events;"], ids=["idle", "in a transaction"])
def test_a_shell_that_stays_open_hinders_nobody_and_leaves_without_harm(
    tmp_path: Path, shell: Shell, kept: str
) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent:
        with shell.held(path, kept):
            agent.goes_on()
        agent.goes_on()
        agent.leave()
    assert_whole(path, agent)


def test_a_look_after_the_owner_was_killed_loses_nothing(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    for number in range(3):
        with Agent(path, f"s{number}") as agent:
            agent.kill()
        assert shell.told(path, LOOK) == ["1"]
        assert_whole(path, agent)


def test_a_look_before_the_owner_is_killed_loses_nothing(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent, shell.held(path, LOOK):
        agent.goes_on()
        agent.kill()
    assert_whole(path, agent)


@pytest.mark.parametrize("end", [Agent.leave, Agent.kill], ids=["leaves", "is killed"])
def test_one_of_two_owners_ends_between_two_looks_and_the_other_goes_on(
    tmp_path: Path, shell: Shell, end: object
) -> None:
    path = tmp_path / "log.db"
    with Agent(path, "a") as one, Agent(path, "b") as other:
        assert shell.told(path, LOOK) == ["1"]
        end(one)  # type: ignore[operator]
        assert shell.told(path, LOOK) == ["1"]
        other.goes_on()
        other.kill()
    assert shell.told(path, LOOK) == ["1"]
    assert_whole(path, one, other)


UPKEEP = (
    "VACUUM",
    "REINDEX",
    "ANALYZE",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA optimize",
    "PRAGMA integrity_check",
)


@pytest.mark.parametrize("upkeep", UPKEEP)
def test_upkeep_by_hand_under_a_working_agent_harms_nothing(tmp_path: Path, shell: Shell, upkeep: str) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent:
        for _ in range(3):
            shell.told(path, f"{upkeep};")
            agent.goes_on()
        agent.kill()
    assert_whole(path, agent)


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "MEMORY", "OFF"])
def test_the_journal_mode_cannot_be_switched_under_a_working_agent(tmp_path: Path, shell: Shell, mode: str) -> None:
    path = tmp_path / "log.db"
    with Agent(path) as agent:
        shell.run(path, f"PRAGMA journal_mode = {mode};")
        assert shell.told(path, "PRAGMA journal_mode;") == ["wal"]
        agent.goes_on()
        agent.leave()
    assert_whole(path, agent)


# ---------------------------------------------------------------- writes


def literal_attacks(path: Path) -> Iterator[tuple[str, str]]:
    """(table, statement) for every attack, with its values written out."""
    with plain(path) as database:
        for table in tables_of(database):
            for statement, values in attacks(database, table):
                parts = statement.split("?")
                written = [database.execute("SELECT quote(?)", (value,)).fetchone()[0] for value in values]
                yield table, "".join(map(str.__add__, parts, [*written, ""]))


def attack_script(path: Path) -> str:
    """Each attack in a transaction that is taken back; prints HARM where a row of before is changed or gone."""
    with plain(path) as database:
        tables = [name for name in tables_of(database) if name != "open_mark"]  # its one cell may change
    lines = [*(f"CREATE TEMP TABLE was_{table} AS SELECT * FROM {table};" for table in tables)]
    for table, attack in literal_attacks(path):
        lines += ["BEGIN IMMEDIATE;", f"{attack};"]
        if table in tables:
            lines.append(
                f"SELECT 'HARM to {table}' WHERE EXISTS(SELECT * FROM temp.was_{table} EXCEPT SELECT * FROM {table});"
            )
        else:
            lines.append(f"SELECT 'HARM to {table}' WHERE (SELECT count(*) FROM {table}) <> 1;")
        lines.append("ROLLBACK;")
    return "\n".join(lines)


def test_no_write_changes_what_was_there_while_an_agent_works(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    rich(path)
    script = attack_script(path)
    assert script.count("BEGIN") > 500
    with Agent(path, "live") as agent:
        done = shell.run(path, script)
        assert "HARM" not in done.stdout
        assert done.stderr.count("append-only") > 500
        agent.goes_on()
        agent.leave()
    assert_whole(path, agent)


def test_the_same_writes_would_do_harm_without_the_guards(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    rich(path)
    script = attack_script(path)
    with plain(path) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        tables = tables_of(database)
    harmed = set(shell.run(path, script).stdout.splitlines())
    assert harmed == {f"HARM to {table}" for table in tables}


REFUSED = (
    "DELETE FROM events",
    "UPDATE events SET text = 'forged'",
    "INSERT OR REPLACE INTO events SELECT * FROM events",
    "INSERT OR IGNORE INTO events SELECT * FROM events",
    "INSERT INTO events SELECT * FROM events WHERE true ON CONFLICT DO UPDATE SET text = 'forged'",
    "REPLACE INTO blobs SELECT * FROM blobs",
    "UPDATE OR REPLACE delta_texts SET text = 'forged'",
    "INSERT OR REPLACE INTO session_keys SELECT session, 'forged', uid FROM session_keys",
    "INSERT INTO session_keys VALUES(1, 's', 'forged') ON CONFLICT DO UPDATE SET uid = 'forged'",
    "UPDATE letters SET session = 'forged'",
    "REPLACE INTO letters SELECT * FROM letters",
    "DELETE FROM open_mark",
    "UPDATE open_mark SET is_open = 0",
)


def test_writes_that_are_not_taken_back_change_nothing_either(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "log.db"
    rich(path)
    with Agent(path, "live") as agent:
        with plain(path) as database:
            before = tables_of(database)
        done = shell.run(path, "\n".join(f"{attack};" for attack in REFUSED))
        assert done.stderr.count("append-only") >= len(REFUSED) - 2
        agent.goes_on()
        agent.kill()
    with plain(path) as database:
        after = tables_of(database)
    assert all(set(before[table]) <= set(after[table]) for table in before if table != "open_mark")
    assert "forged" not in repr(after)
    assert_whole(path, agent)
