"""The index by words: a disposable SQLite file of its own that several processes may use, never the log's file.

Whoever writes holds the lock of the file beside it, and opens the index only then. So an index can be replaced
as a whole, by a new file: that is how one that is missing or damaged comes back, and how what was purged goes,
since no byte of the old file is in the new one.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from attrs import define, field

from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.memory.interface import Unusable
from flightlog_plugins.memory.remembered import Remembered
from flightlog_plugins.memory.terms import indexed, query

APPLICATION_ID: Final = 0x464C4D4D
VERSION: Final = 2
BUSY_MAX_S: Final = 4.0
"""How long to wait for another process."""
_POLL_S: Final = 0.01
_NAME: Final = re.compile(r"^-- name: (\w+)$\n", re.MULTILINE)
_MAGIC: Final = b"SQLite format 3\0"
_ID_AT: Final = slice(68, 72)
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Writer:
    """Adds to an open index."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, found: Remembered, subject: str) -> None:
        """Add `found`, unless `subject` remembers the same already."""
        if found.concludes:
            for row, text in self._connection.execute(_sql("drop"), (found.session,)).fetchall():
                self._connection.execute(_sql("drop_terms"), (row, indexed(text)))
        values = (subject, found.kind, found.text, found.session, found.at_us, found.concludes)
        for (row,) in self._connection.execute(_sql("add"), values).fetchall():
            self._connection.execute(_sql("add_terms"), (row, indexed(found.text)))

    def follow(self, session: str, seq: int) -> None:
        """Note that `session` was read up to row `seq`."""
        self._connection.execute(_sql("follow"), (session, seq))


@define(eq=False)
class WordIndex:
    """The index at `path`, a `MemoryIndex`. Everything waits for the disk: call it in a thread."""

    path: str
    _sound: tuple[int, int] = field(default=(0, 0), init=False)

    def search(self, words: str, *, subject: str, beside: str, limit: int) -> list[Remembered]:
        """What fits `words` best, the best first, without what session `beside` was the first to remember."""
        wanted = query(words)
        if not wanted:
            return []
        with self._opened() as connection:
            rows = connection.execute(_sql("search"), (wanted, subject, beside, limit)).fetchall()
        return [
            Remembered(kind=kind, text=text, session=name, at_us=at_us, concludes=bool(concludes))
            for kind, text, name, at_us, concludes in rows
        ]

    def followed(self) -> dict[str, int]:
        """The last row that was read of each session."""
        with self._opened() as connection:
            return dict(connection.execute(_sql("followed")).fetchall())

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Add to the index, all or nothing."""
        with self._alone(), self._opened() as connection:
            connection.execute(_sql("safely"))
            connection.execute(_sql("begin"))
            yield Writer(connection)
            connection.execute(_sql("commit"))

    def rebuild(self, fill: Callable[[Writer], None], *, unless_sound: bool = False) -> None:
        """Put a new index in the place of whatever is there; with `unless_sound`, only if that is unusable."""
        self.check_ours()
        with self._alone():
            if unless_sound:
                with suppress(Unusable), self._opened():
                    return
            new = f"{self.path}-new"
            _remove(new)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            try:
                with closing(_connected(new)) as connection:
                    connection.executescript(_sql("schema"))
                    connection.execute(_sql("begin"))
                    fill(Writer(connection))
                    connection.execute(_sql("commit"))
                # The old one goes first: a journal that a kill left behind must not be played into the new one.
                _remove(self.path)
                _remove(f"{self.path}-journal")
                os.rename(new, self.path)
            finally:
                _remove(new)
                _remove(f"{new}-journal")

    def check_ours(self) -> bool:
        """Whether there is an index. Raises `UsageError` when something else stands there, which stays as it is."""
        try:
            with open(self.path, "rb") as file:
                head = file.read(100)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(f"the index of memories at {self.path} cannot be read: {error.strerror}") from None
        if head and not (head.startswith(_MAGIC) and head[_ID_AT] == APPLICATION_ID.to_bytes(4, "big")):
            raise UsageError(
                f"{self.path} is not an index of memories, or its beginning is damaged. It was not changed: "
                "name another file, or delete it; the index is made anew from the log"
            )
        return bool(head)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Raises `Unusable`, also from within."""
        try:
            if not self.check_ours():
                raise Unusable("there is no index")
            with closing(_connected(self.path)) as connection:
                self._check(connection)
                yield connection
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE or not os.path.exists(self.path):
                self._sound = (0, 0)
                raise Unusable(str(error)) from error
            raise

    def _check(self, connection: sqlite3.Connection) -> None:
        """Look for damage, once for each file."""
        status = os.stat(self.path)
        if self._sound == (status.st_dev, status.st_ino):
            return
        (version,) = next(connection.execute(_sql("version")))
        (said,) = next(connection.execute(_sql("check")))
        if version != VERSION or said != "ok":
            raise Unusable(f"version {version}, {said}")
        self._sound = (status.st_dev, status.st_ino)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the index. Raises `TimeoutError`."""
        fd = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + BUSY_MAX_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise TimeoutError(f"somebody else writes the index at {self.path}") from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(fd)


def _connected(path: str) -> sqlite3.Connection:
    """An open connection to a file that exists."""
    return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=BUSY_MAX_S, isolation_level=None)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


@cache
def _statements() -> dict[str, str]:
    _, *parts = _NAME.split(files("flightlog_plugins.memory").joinpath("index.sql").read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _sql(name: str) -> str:
    return _statements()[name]
