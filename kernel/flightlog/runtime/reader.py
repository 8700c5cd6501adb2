"""Reading a log: never writes, never takes ownership, also while another process drives it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from io import TextIOBase
from typing import Any, BinaryIO, Literal, Self, TypeVar

import trio
from attrs import fields, frozen

from flightlog.core.history import EncodedRequest
from flightlog.core.limits import QUERY_MAX_ROWS, QUERY_MAX_S
from flightlog.core.questions import unasked
from flightlog.runtime.feed import Feed, Feeds
from flightlog.runtime.journal import HeadToken
from flightlog.runtime.plugins import Discover, bound_thinking, encoder, load_plugins
from flightlog.runtime.registry import Registry
from flightlog.runtime.subscription import Subscription
from flightlog.runtime.task_summary import TaskSummary, event_at, summaries, summary
from flightlog.store.backup import back_up
from flightlog.store.codec import Undecodable, fetched
from flightlog.store.new_file import new_file
from flightlog.store.query import Parameter, QueryResult, run_query
from flightlog.store.replay import Replay, replaying, whole
from flightlog.store.shown import shown_messages
from flightlog.store.store import SessionKey, Store
from flightlog_hookspecs.content import FileBlock
from flightlog_hookspecs.errors import LogCorrupt, UsageError
from flightlog_hookspecs.events import (
    About,
    ApprovalAsked,
    CompactionStart,
    Decision,
    Head,
    Message,
    Record,
    RequestSent,
    TaskStateName,
)

T = TypeVar("T")


@frozen(kw_only=True)
class SentRequest:
    """What the model saw in one attempt, rebuilt from the log.

    `proven` is True when the adapter, encoding it again, arrives at the logged hash; None when the
    adapter is not at hand. `fragments` are the encoded bytes then, else empty.
    """

    turn: int
    step: int
    attempt: int
    seq: int
    head: Head
    messages: tuple[Message, ...]
    sha256: str
    proven: bool | None
    fragments: tuple[bytes, ...]


@frozen(kw_only=True)
class SessionSummary:
    """A session in a listing; times in Unix microseconds. `last_reason` is "open" for an open turn.

    `parent` is the name of the session that this one is a child of, None for one that is nobody's.
    """

    session: str
    uid: str
    title: str
    created_at_us: int
    last_at_us: int
    last_seq: int
    epoch: int
    last_turn: int | None
    last_reason: str | None
    parent: str | None
    depth: int


@frozen(kw_only=True)
class Spending:
    """What a session spent in one currency: tokens, each counted once, and `cost_pico`, in 10^-12 of it.

    Both are None for what nobody can price: attempts that were not answered, interrupted or uncounted answers,
    and those of models without a price. `cost_pico` alone is None when it is over 64 bits.
    """

    currency: str | None
    attempts: int
    answers: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    cost_pico: int | None


@frozen(kw_only=True)
class CardUse:
    """A card of a budget: `most` may be used, `used` is, in tokens, counts or seconds as its name says.

    `used` and `left` are None for what is counted anew in each step. `warned` says that much of it is used.
    """

    card: str
    most: int
    used: int | None
    left: int | None
    warned: bool


class SessionReader:
    """One session, read only."""

    def __init__(
        self, store: Store, session: str, key: SessionKey, registry: Registry | None, feed: Feed | None = None
    ) -> None:
        self._store = store
        self._key = key
        self._feed = feed or Feed()
        self._registry = registry
        self.session = session
        self.uid = key.uid

    def length(self) -> int:
        """How many events the session has: the seq of the newest one."""
        return int(self._store.read("last_seq", self._key.key)[0][0])

    def records(self, *, deltas: bool = False) -> Iterator[Record]:
        """All events in order, each checked before it is yielded; with `deltas`, their texts too."""
        yield from replaying(self._store, self._start(), self._key.key, deltas=deltas)

    def events(self, after: int = 0, *, deltas: bool = True) -> Subscription:
        """The records behind seq `after`, then those to come, until the kernel or log is closed.

        An async iterator, under trio: `async for record in reader.events()`. Records that another process
        writes come at most some 10 ms late. Without `deltas`, `assistant/delta` is left out. Each record
        is checked against the hash chain, but not against the law. Raises `UsageError` when there is no
        record `after`, `LogCorrupt` or `SchemaTooNew` at a record that cannot be shown.
        """
        return Subscription(self._store, self.session, self._key, self._feed, after=after, deltas=deltas)

    def messages(self) -> list[Message]:
        """What the model would be sent now, through the `messages` view. Raises `LogCorrupt` for a damaged row."""
        return [message for _, message in shown_messages(self._store, self.session)]

    def data_of(self, file: FileBlock) -> bytes:
        """The bytes of a file in one of its messages. Raises `UsageError` when there is no such file."""
        try:
            return fetched(self._store.blob, bytes.fromhex(file.sha256))
        except (Undecodable, ValueError) as error:
            raise UsageError(f"{self._store.path} does not hold the {file.label}: {error}") from None

    def request(self, turn: int, step: int, attempt: int | None = None) -> SentRequest:
        """Exactly what the model saw in `attempt` (the last one by default) of that step.

        Raises `UsageError` when there was no such request.
        """
        found = self._store.read("requests_of", self.session, turn, step, attempt)
        if not found:
            which = "" if attempt is None else f", attempt {attempt}"
            raise UsageError(f"session {self.session!r} made no request in turn {turn}, step {step}{which}")
        replay = self._start()
        for record in replaying(self._store, replay, self._key.key):
            if record.seq == found[0][0]:
                assert isinstance(record.event, RequestSent), "the view lists only request/sent"
                return self._rebuilt(replay, record, record.event)
        raise LogCorrupt(self.session, found[0][0], "seq-dense", "the requests view lists a row that is not there")

    def export(self, target: str | os.PathLike[str] | BinaryIO) -> HeadToken:
        """Write the session as JSONL, hash chain and all, to a new file (mode 0600) or an open binary one.

        Returns the row it ends with. Every row is checked first; at a fault there is no file, and an
        open one lacks the closing line, so that nobody can import it. Raises `UsageError` when the
        file exists, `LogCorrupt`, `SchemaTooNew`.
        """
        from flightlog.store.exporting import exported

        lines = exported(self._store, self.session, self._key)
        if isinstance(target, (str, os.PathLike)):
            with new_file(path_of("target", target)) as part, open(part, "wb") as file:
                return self._written(lines, file)
        return self._written(lines, file_of("target", target, "write"))

    def _written(self, lines: Iterator[bytes], file: BinaryIO) -> HeadToken:
        from flightlog.store.jsonl import Closing, parsed

        for line in lines:
            file.write(line)
        closing = parsed(line)
        assert isinstance(closing, Closing), "an export ends with its closing line"
        return HeadToken(session=self.session, seq=closing.rows, digest=closing.head.hex())

    def budget(self) -> list[CardUse]:
        """The cards of its budget, as the view `budgets` has them; none where it has no budget."""
        rows = self._store.read("budget_of", self.session)
        return [CardUse(card=c, most=most, used=used, left=left, warned=bool(w)) for c, most, used, left, w in rows]

    def usage(self) -> list[Spending]:
        """What it spent by currency, what has no known cost last. Turns that a fork took over do not count."""
        names = tuple(field.name for field in fields(Spending))
        rows = self._store.read("usage_of", self.session)
        return [Spending(**dict(zip(names, row, strict=True))) for row in rows]

    def timeline(self) -> list[tuple[int, str, int | None, int | None, str, str | None, str | None]]:
        """The flight log for people: (seq, time, turn, step, kind, what, text) per event."""
        rows = self._store.read("timeline", self.session)
        return [(row[0], row[1], row[2], row[3], row[4], row[5], row[6]) for row in rows]

    def verify(self) -> int:
        """Check everything that can be checked; returns the number of events.

        Chain, shapes, derived columns, legality, hashes of deltas and payloads, the `messages` view
        against its twin, and every request's hash where its adapter is at hand. Raises `LogCorrupt`
        or `SchemaTooNew` at the first fault.
        """
        return sum(1 for _ in self.verifying())

    def verifying(self) -> Iterator[Record]:
        """The records in order, and what `verify` raises, at the end at the latest."""
        replay = self._start()
        prover = Prover(self._store, self._registry)
        for record in replaying(self._store, replay, self._key.key, deltas=True):
            if isinstance(record.event, RequestSent) and prover.digest(replay) not in (record.event.sha256, None):
                raise LogCorrupt(
                    self.session, record.seq, "request-derivable", "the log does not yield the request that was sent"
                )
            if isinstance(record.event, RequestSent) and len(replay.history) != record.event.messages:
                raise LogCorrupt(
                    self.session, record.seq, "request-derivable", "the log holds another number of messages"
                )
            if isinstance(record.event, CompactionStart) and prover.asking(replay, record.event) is False:
                raise LogCorrupt(
                    self.session, record.seq, "request-derivable", "the log does not yield the request for a summary"
                )
            yield record
        if self.messages() != [message for _, message in replay.history.since(0)]:
            raise LogCorrupt(self.session, None, "view-twin", "the messages view differs from the log")

    def _start(self) -> Replay:
        return Replay(session=self.session, uid=self._key.uid)

    def _rebuilt(self, replay: Replay, record: Record, sent: RequestSent) -> SentRequest:
        header = replay.state.header
        assert header is not None, "legality: a request names its header"
        assert record.turn is not None, "legality: a request stands inside a step"
        assert record.step is not None, "legality: a request stands inside a step"
        messages = tuple(message for _, message in replay.history.since(0))
        prover = Prover(self._store, self._registry)
        digest = prover.digest(replay)
        return SentRequest(
            turn=record.turn,
            step=record.step,
            attempt=sent.attempt,
            seq=record.seq,
            head=header.head,
            messages=messages,
            sha256=sent.sha256,
            proven=None if digest is None else digest == sent.sha256,
            fragments=prover.fragments,
        )


class Prover:
    """Encodes the requests of a log again, each part once, to compare their hashes with the logged ones."""

    def __init__(self, store: Store, registry: Registry | None) -> None:
        self._store = store
        self._registry = registry
        self._encoded: EncodedRequest | None = None

    def digest(self, replay: Replay) -> str | None:
        """The hash of the request that `replay` stands at; None when its adapter is not at hand."""
        header = replay.state.header
        assert header is not None, "legality: a request names its header"
        adapter = self._registry.adapters.get(header.head.adapter) if self._registry else None
        if adapter is None:
            self._encoded = None
            return None
        rewritten_at, bound = replay.history.rewritten_at, bound_thinking(adapter.item)
        if self._encoded is None or (self._encoded.head, self._encoded.rewritten_at) != (header.head, rewritten_at):
            self._encoded = EncodedRequest(header.head, encoder(adapter.item), rewritten_at, bound)
        for place, message in replay.history.since(len(self._encoded.messages)):
            self._encoded.add(place, message, whole(self._store, replay.session, message))
        return self._encoded.digest

    def asking(self, replay: Replay, start: CompactionStart) -> bool | None:
        """Whether `replay` yields the request for the summary that begins there; None when that cannot be told."""
        if start.level != "summarise" or self.digest(replay) is None or self._encoded is None:
            return None
        return self._encoded.asking(start.instruction, replay.history.until(start.to_seq))[1] == start.sha256

    @property
    def fragments(self) -> tuple[bytes, ...]:
        """The encoded parts of the last request, empty when its adapter is not at hand."""
        return tuple(self._encoded.fragments) if self._encoded else ()


@frozen(kw_only=True)
class TimerSummary:
    """A timer as it stands. Times are Unix microseconds.

    `state` is open, fired (for the last time) or cancelled; an open one is due next at `due_at_us` and repeats every
    `every_us`, if that is set. It has fired `runs` times, last at `fired_at_us`, and `missed` more runs had come due by
    then. `text` are the words of its message, of very long ones the beginning.
    """

    session: str
    timer: str
    state: Literal["open", "fired", "cancelled"]
    due_at_us: int | None
    every_us: int | None
    runs: int
    missed: int
    fired_at_us: int | None
    set_at_us: int
    set_by: str
    text: str


class LogReader:
    """A whole log file, read only. Use as a context manager."""

    def __init__(self, store: Store, registry: Registry | None = None) -> None:
        self._store = store
        self._feeds = Feeds()
        self._registry = registry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feeds.close()
        self._store.close()

    def names(self) -> list[str]:
        """All sessions in order of creation."""
        return [name for (name,) in self._store.read("session_names")]

    def sessions(self, limit: int | None = None) -> list[SessionSummary]:
        """The sessions, the last used first; with `limit`, at most that many."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise UsageError(f"limit is a whole number of sessions, or None for all, not {limit!r}")
        return [
            SessionSummary(
                session=row[0],
                uid=row[1],
                title=row[2],
                created_at_us=row[3],
                last_at_us=row[4],
                last_seq=row[5],
                epoch=row[6],
                last_turn=row[7],
                last_reason=row[8],
                parent=row[9],
                depth=row[10],
            )
            for row in self._store.read("sessions_page", -1 if limit is None else limit)
        ]

    def tasks(self, state: TaskStateName | None = None, *, limit: int | None = None) -> list[TaskSummary]:
        """The tasks in `state`, or all, the last submitted first; with `limit`, at most that many."""
        return summaries(self._store, state, limit)

    def task(self, id: str) -> TaskSummary:
        """Task `id` as it stands. Raises `UsageError` when there is none."""
        return summary(self._store, id)

    def session(self, name: str) -> SessionReader:
        """Session `name`. Raises `UsageError` when there is none."""
        return reader_of(self._store, name, self._registry, self._feeds)

    def timers(self, session: str | None = None, *, ended: bool = False) -> list[TimerSummary]:
        """The open timers of one session or all, the next due first; with `ended` also those that fire no more."""
        return [
            TimerSummary(
                session=row[0],
                timer=row[1],
                state=row[2],
                due_at_us=row[3],
                every_us=row[4],
                runs=row[5],
                missed=row[6],
                fired_at_us=row[7],
                set_at_us=row[8],
                set_by=row[9] or "",
                text=row[10] or "",
            )
            for row in self._store.read("timers_page", session, ended)
        ]

    def query(
        self, sql: str, *parameters: Parameter, limit_rows: int = QUERY_MAX_ROWS, limit_s: float = QUERY_MAX_S
    ) -> QueryResult:
        """Run one SELECT over the views and tables; waits for the result. See `Kernel.query`."""
        self._store.check_process()
        return run_query(self._store.path, sql, parameters, limit_rows=limit_rows, limit_s=limit_s)

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the whole file to the new file `target` (mode 0600), consistent while others write.

        The copy opens as one that was closed cleanly. Raises `UsageError` when something is there.
        """
        self._store.check_process()
        back_up(self._store.path, log_path_of("target", target))

    def check_file(self) -> None:
        """Let SQLite check its own structures. Raises `LogCorrupt`."""
        problems = [text for (text,) in self._store.read("integrity_check") if text != "ok"]
        if problems:
            raise LogCorrupt("*", None, "sqlite-intact", problems[0])


def open_log(path: str | os.PathLike[str], *, discover: Discover = True, plugins: Sequence[object] = ()) -> LogReader:
    """Open the log at `path` to read only: nothing is changed, recovered or owned.

    Adapters found by `discover` or in `plugins` let it prove the hash of every request.
    """
    registry = load_plugins(discover=discover, plugins=plugins)
    return LogReader(Store.open_to_read(log_path_of("path", path)), registry)


def path_of(name: str, given: object) -> str:
    """The absolute path that was given as `name`. Raises `UsageError` when it is none."""
    try:
        path = os.path.abspath(os.fsdecode(given))  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} must be a path, not {type(given).__name__}") from None
    if "\0" in path:
        raise UsageError(f"{name} is no path: {path!r} holds a NUL")
    return path


def log_path_of(name: str, given: object) -> str:
    """As `path_of`, of a log: SQLite opens no file whose name is not UTF-8."""
    path = path_of(name, given)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: {path!r} is not UTF-8, and no log can have such a name") from None
    return path


def file_of(name: str, given: object, method: str) -> Any:
    """The open binary file that was given as `name`, which has that method. Raises `UsageError` when it is none."""
    if isinstance(given, TextIOBase) or not callable(getattr(given, method, None)):
        raise UsageError(f"{name} must be a path or an open binary file, not {type(given).__name__}")
    return given


def reader_of(store: Store, name: str, registry: Registry | None, feeds: Feeds) -> SessionReader:
    """A reader of session `name` on an open store. Raises `UsageError` when there is none."""
    key = store.key_of(name)
    if key is None:
        raise UsageError(f"there is no session {name!r} in {store.path}")
    return SessionReader(store, name, key, registry, feeds.of(name))


def check_answer(reader: SessionReader, asked_seq: int, decision: Decision, key: str | None) -> None:
    """Raise `UsageError` unless the log has a question open at `asked_seq` that takes `decision`.

    One that was sent under `key` before is that answer, whatever came of it since. What comes too late only for the
    session's owner is refused by that one.
    """
    store = reader._store  # noqa: SLF001
    if key is not None and store.read("letter_of_key", reader.session, key):
        return
    asked: dict[int, About] = {}
    for (seq,) in store.read("questions_open", reader.session):
        question = event_at(store, reader.session, reader._key.key, seq)  # noqa: SLF001
        assert isinstance(question, ApprovalAsked), "the view finds only these"
        asked[seq] = question.about
    if why := unasked(asked, asked_seq, decision):
        raise UsageError(f"session {reader.session!r}: {why}")


def settled_questions(reader: SessionReader, until: int) -> list[int]:
    """The rows of the questions that were settled by row `until` of the session."""
    return [seq for (seq,) in reader._store.read("questions_settled", reader.session, until)]  # noqa: SLF001


async def apart(reader: SessionReader, work: Callable[[SessionReader], T]) -> T:
    """What `work` makes of the session, in a thread and with a connection of its own: the loop does not wait."""
    store, registry = reader._store, reader._registry  # noqa: SLF001

    def run() -> T:
        with LogReader(Store.open_to_read(store.path), registry) as log:
            return work(log.session(reader.session))

    store.check_process()
    return await trio.to_thread.run_sync(run)
