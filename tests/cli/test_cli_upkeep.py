"""`repair` and `purge`: nothing is changed without --yes, and exit codes say what is to be done."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from flightlog_process import Shell

import flightlog


@pytest.fixture
def copied(counted: Shell, shell: Shell) -> Shell:
    """A shell with a log of its own: sessions "c" and "other"."""
    for path in counted.folder.glob("agent.db*"):
        shutil.copy(path, shell.folder / path.name)
    shell.call("run", "hello", "--session", "other")
    return shell


def damage(shell: Shell) -> None:
    connection = sqlite3.connect(shell.db)
    connection.execute("DROP TRIGGER events_update")
    connection.execute("UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 9")
    connection.commit()
    connection.close()


def test_a_sound_log_has_nothing_to_repair(copied: Shell) -> None:
    before = copied.files()
    assert "nothing to repair" in copied.call("repair").out
    assert "nothing to repair" in copied.call("repair", "--yes").out
    said = copied.call("repair", "--yes", "--json").json
    assert (said["damaged"], said["repaired"], said["sessions"]) == (False, False, [])
    assert copied.files() == before


def test_a_damaged_log_is_repaired_only_with_yes_and_goes_on(copied: Shell) -> None:
    damage(copied)
    other = copied.kinds("other")
    before = copied.files()
    dry = copied.call("repair", code=3)
    assert "✗ c: 8 events kept, " in dry.out
    assert "(rule hash-chain)" in dry.out
    assert "Nothing was changed" in dry.out
    said = copied.call("repair", "--json", code=3).json
    assert (said["damaged"], said["repaired"], said["backup"]) == (True, False, None)
    assert [(s["session"], s["kept"], s["seq"], s["rule"]) for s in said["sessions"]] == [("c", 8, 9, "hash-chain")]
    assert copied.files() == before
    done = copied.call("repair", "--yes")
    assert "the damaged file is kept as" in done.out
    assert before["agent.db"] in copied.files().values()
    assert copied.call("verify", "--json").json["ok"]
    assert copied.kinds("other") == other
    assert copied.kinds("c")[-1] == "session/repaired"
    assert "left out (hash-chain)" in copied.call("show", "c").out
    copied.call("resume", "c", "go on", "--model", "scripted:echo")
    assert copied.kinds("c")[-2:] == ["turn/end", "session/closed"]


def test_what_is_no_log_is_refused_not_repaired(shell: Shell) -> None:
    shell.db.write_bytes(b"dear diary, " * 100)
    before = shell.files()
    assert "is not a SQLite database" in shell.call("repair", "--yes", code=3).complaint
    assert shell.files() == before
    assert "no such file" in shell.call("repair", "--db", "missing.db", code=2).complaint


def test_sessions_are_purged_only_with_yes(copied: Shell) -> None:
    before, other = copied.files(), copied.kinds("other")
    events = len(copied.kinds("c"))
    assert f"would be removed for good from {copied.db}; --yes does it" in copied.call("purge", "c").out
    dry = copied.call("purge", "c", "--json").json
    assert dry == {"purged": False, "file": str(copied.db), "sessions": ["c"], "events": events, "letters": 0}
    assert copied.files() == before
    assert copied.call("purge", "c", "--yes", "--json").json == dry | {"purged": True}
    assert copied.kinds("other") == other
    assert [row["session"] for row in copied.call("sessions", "--json").json] == ["other"]
    assert "there is no session 'c'" in copied.call("purge", "c", "--yes", code=2).complaint
    assert f"removed for good from {copied.db}\n" in copied.call("purge", "other", "--yes").out
    assert "Missing argument" in copied.call("purge", code=2).complaint


def test_a_log_in_use_is_not_replaced(copied: Shell) -> None:
    with flightlog.open_log(copied.db, discover=False):
        assert "has the file open" in copied.call("purge", "c", "--yes", code=1).complaint
    damage(copied)
    with flightlog.open_log(copied.db, discover=False):
        assert "has the file open" in copied.call("repair", "--yes", code=1).complaint
    copied.call("repair", "--yes")
