"""The rows of a file whose tables SQLite cannot read through, in a database that it can.

They are told by their shape alone, so anything may have been taken for a row. That is safe, for who reads them
goes on from what the chain and the hashes prove, as with every row of a damaged file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from flightlog.store.connection import ApswDatabase, Database, Value
from flightlog.store.new_file import part_of
from flightlog.store.raw_pages import Found, records
from flightlog.store.rows import EventRow


@contextmanager
def regained(path: str) -> Iterator[Database]:
    """A database with all rows that stand in the pages of the file at `path`. Beside it, and gone afterwards."""
    with part_of(path) as part, closing(ApswDatabase(part)) as database:
        database.read("journal_mode_memory")
        database.begin(barrier=False)  # never committed: it is thrown away
        database.read("regained_tables")
        for found in records(path):
            if statement := _statement(found):
                database.write(statement, [_row(found)])
        yield database


def _statement(found: Found) -> str | None:
    """What enters the record into its table. Rows of other tables and entries of indexes have other shapes."""
    match found:
        case Found(int(), [None, int(), int(), *rest]) if len(rest) == len(EventRow._fields) - 2:
            return "regain_event"
        case Found(int(), [None, str(), str()]):
            return "regain_session"
        case Found(int(), [None, bytes(), bytes()]):
            return "regain_blob"
        case Found(int(), [None, str(), str(), None | str(), int(), str(), str(), bytes()]):
            return "regain_letter"
        case Found(None, [int(), int(), int(), int(), str()]):
            return "regain_delta"
        case _:
            return None


def _row(found: Found) -> list[Value]:
    # The id of a row is not in its record: there stands NULL.
    return found.values if found.id is None else [found.id, *found.values[1:]]
