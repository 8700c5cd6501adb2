"""The floor: the three messages of a step as rows of SQLite, and as lines of a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from contestants.step import NAME, Contestant, Pace, arguments, question, result


def messages(number: int) -> Iterator[dict[str, str]]:
    """The three messages of a step."""
    yield {"role": "user", "content": question(number)}
    yield {"role": "assistant", "call_id": f"call-{number}", "name": NAME, "arguments": arguments(number)}
    yield {"role": "tool", "call_id": f"call-{number}", "content": result(number)}


def whole_steps(found: list[dict[str, str]]) -> int:
    """How many steps the messages are. Fails unless they are those that were written."""
    assert found == [message for number in range(len(found) // 3) for message in messages(number)]
    return len(found) // 3


def run_apsw(folder: Path, pace: Pace) -> None:
    """Each message is a row, and each row a commit with an fsync."""
    connection = apsw.Connection(str(folder / "rows.db"))
    for sql in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA wal_autocheckpoint=1000"):
        connection.execute(sql)
    connection.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, data TEXT)")
    number = 0
    while pace.more():
        for message in messages(number):
            connection.execute("INSERT INTO messages(data) VALUES(?)", (json.dumps(message),))
        number += 1


def resume_apsw(folder: Path) -> int:
    """Read them."""
    rows = apsw.Connection(str(folder / "rows.db")).execute("SELECT data FROM messages ORDER BY id")
    return whole_steps([json.loads(data) for (data,) in rows])


def run_jsonl(folder: Path, pace: Pace) -> None:
    """Each message is a line, and each line is synced."""
    file = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = 0
    while pace.more():
        for message in messages(number):
            os.write(file, json.dumps(message).encode() + b"\n")
            os.fdatasync(file)
        number += 1


def resume_jsonl(folder: Path) -> int:
    """Read them."""
    return whole_steps([json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()])


CONTESTANTS = {
    "bare apsw, 3 commits FULL": Contestant(run_apsw, resume_apsw),
    "JSONL, append + fdatasync": Contestant(run_jsonl, resume_jsonl),
}
