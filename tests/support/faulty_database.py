"""A database that fails once, at a chosen call, and works before and after: what comes after is the store's doing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from attrs import define, field

from flightlog.store.connection import Database, Row, Value
from flightlog.store.log_file import open_log_file
from flightlog.store.store import Store

Method = Literal["begin", "write", "commit", "read"]
METHODS: tuple[Method, ...] = ("begin", "write", "commit", "read")


@define
class FaultyDatabase(Database):
    """Passes everything on to `inner`, except call number `at` of `method`, which raises `error()`.

    `late` lets the call happen first: the rows are in, but who asked is told that they are not.
    `calls` lists every call as it arrived, so that a test sees what was tried after the fault.
    """

    inner: Database
    method: Method | None = None
    at: int = 0
    error: Callable[[], BaseException] = RuntimeError
    late: bool = False
    calls: list[str] = field(factory=list, init=False)
    fired_at: int | None = field(default=None, init=False)

    def _before(self, method: Method, statement: str = "") -> bool:
        """Note the call; True when it is the one to fail."""
        self.calls.append(f"{method} {statement}".strip())
        if self.fired_at is not None or method != self.method:
            return False
        return sum(call.split()[0] == method for call in self.calls) == self.at

    def _fail(self) -> None:
        self.fired_at = len(self.calls)
        raise self.error()

    @property
    def after_the_fault(self) -> list[str]:
        """The calls that were made after the failing one."""
        assert self.fired_at is not None, "the fault was never reached"
        return self.calls[self.fired_at :]

    def arm(self, method: Method, at: int = 1, *, late: bool = False) -> None:
        """Fail at call number `at` of `method` from now on."""
        self.method, self.at, self.late, self.fired_at = method, at, late, None
        self.calls.clear()

    def read(self, name: str, *arguments: Value) -> list[Row]:
        if self._before("read", name):
            self._fail()
        return self.inner.read(name, *arguments)

    def write(self, name: str, rows: Iterable[Sequence[Value]]) -> int:
        failing = self._before("write", name)
        if failing and not self.late:
            self._fail()
        last_id = self.inner.write(name, rows)
        if failing:
            self._fail()
        return last_id

    def begin(self, *, barrier: bool) -> None:
        failing = self._before("begin", "barrier" if barrier else "ordinary")
        if failing and not self.late:
            self._fail()
        self.inner.begin(barrier=barrier)
        if failing:
            self._fail()

    def commit(self) -> None:
        failing = self._before("commit")
        if failing and not self.late:
            self._fail()
        self.inner.commit()
        if failing:
            self._fail()

    def rollback(self) -> None:
        self.calls.append("rollback")
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


def under(store: Store, error: Callable[[], BaseException]) -> FaultyDatabase:
    """Put a faulty database, not armed yet, under an open store; `close` uses it, too."""
    faulty = FaultyDatabase(inner=store.database, error=error)
    store.database = faulty
    store._file.database = faulty  # type: ignore[assignment]
    return faulty


@contextmanager
def faulty_store(path: Path, error: Callable[[], BaseException]) -> Iterator[tuple[Store, FaultyDatabase]]:
    """A store on `path` with a faulty database under it."""
    store = Store(open_log_file(str(path), create=True))
    faulty = under(store, error)
    try:
        yield store, faulty
    finally:
        store.close()
