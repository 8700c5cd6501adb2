"""Reading an export: checked by the code that reads a log, completely, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from attrs import define, field, frozen

from flightlog.store.codec import CLASS_OF_KIND, Undecodable, completed, payloads_of
from flightlog.store.jsonl import BadLine, BlobLine, Closing, Header, Line, RowLine, parsed
from flightlog.store.replay import Replay, check_ending, checking
from flightlog.store.rows import Encoded, EventRow
from flightlog.store.store import Blob, NewSession
from flightlog_hookspecs.errors import ImportRefused, LogCorrupt, SchemaTooNew


@frozen(kw_only=True)
class Imported:
    """A whole session, checked and ready to be entered."""

    session: NewSession
    rows: tuple[Encoded, ...]
    blobs: tuple[Blob, ...]


def imported(lines: Iterable[bytes]) -> Imported:
    """The session in an export. Raises `ImportRefused` naming the line, or `SchemaTooNew`.

    All of it is held in memory: nothing may be written before the last line is seen.
    """
    export = _Export(lines=iter(lines))
    session = export.header()
    replay = Replay(session=session.name, uid=session.uid)
    rows: list[Encoded] = []
    try:
        for row, record in checking(export, replay, 0, deltas=True):
            export.check_blobs(payloads_of(row, record.event))
            rows.append(Encoded(row, (), tuple(export.current)))
        export.check_end(replay)
        check_ending(replay)
    except LogCorrupt as error:
        raise ImportRefused(export.line, error.rule, f"seq {error.seq}: {error.detail}") from None
    except SchemaTooNew as error:
        raise SchemaTooNew(f"line {export.line}: {error} Nothing was imported.") from None
    return Imported(session=session, rows=tuple(rows), blobs=tuple(export.blobs.items()))


@define
class _Export:
    """The lines of an export as a `Source`. `line` is the one looked at, `current` the texts of its deltas."""

    lines: Iterator[bytes]
    line: int = 0
    blobs: dict[bytes, bytes] = field(factory=dict)
    current: list[tuple[int, str]] = field(factory=list)
    closing: Closing | None = None
    _fresh: list[bytes] = field(factory=list, init=False)
    """The payloads since the last row, which that row must refer to."""

    def header(self) -> NewSession:
        """The session that the first line names."""
        first = self._next()
        if not isinstance(first, Header):
            raise self._refused("header", "is not the first line of an export")
        return NewSession(first.session, first.uid)

    def rows(self, key: int, after: int = 0) -> Iterator[EventRow]:  # noqa: ARG002  one session only
        """The rows, up to the closing line."""
        while True:
            match self._next():
                case BlobLine(digest, content):
                    if sha256(content).digest() != digest:
                        raise self._refused("blob-hash", f"the payload is not the one with sha256 {digest.hex()}")
                    if digest in self.blobs:
                        raise self._refused("blob-once", f"the payload {digest.hex()} stands here a second time")
                    self.blobs[digest] = content
                    self._fresh.append(digest)
                case RowLine(row, pieces):
                    if pieces and row.kind != "assistant/delta":
                        raise self._refused("line-shape", f"{row.kind} has no deltas")
                    self.current = pieces
                    yield self._completed(row)
                case Closing() as closing:
                    self.closing = closing
                    return
                case Header():
                    raise self._refused("header", "is the first line of an export once more")

    def blob(self, digest: bytes) -> bytes:
        """A payload of the lines so far."""
        return self.blobs.get(digest, b"")

    def pieces(self, key: int, seq: int) -> list[tuple[int, str]]:  # noqa: ARG002  one session only
        """The delta texts of the row just read."""
        return self.current

    def check_blobs(self, needed: tuple[bytes, ...]) -> None:
        """Raise unless the payloads just read are those that the row behind them is the first to need."""
        if self._fresh != [digest for digest in needed if digest in set(self._fresh)]:
            raise self._refused("blob-used", "a payload stands before this row that the row does not refer to")
        self._fresh = []

    def check_end(self, replay: Replay) -> None:
        """Raise unless the closing line closes what was read, and nothing follows."""
        assert self.closing is not None, "rows end with the closing line"
        if self._fresh:
            raise self._refused("blob-used", "no row refers to the payload before this line")
        if self.closing != (replay.seq, replay.digest):
            raise self._refused("closing", f"the closing line does not close the {replay.seq} rows before it")
        if next(self.lines, b""):
            self.line += 1
            raise self._refused("closing", "something follows the closing line")

    def _next(self) -> Line:
        raw = next(self.lines, b"")
        self.line += 1
        if not raw:
            raise self._refused("complete", "the closing line is missing: the export was cut off")
        if not raw.endswith(b"\n"):
            raise self._refused("complete", "the line has no end: the export was cut off")
        try:
            return parsed(raw)
        except BadLine as error:
            raise self._refused("line-shape", str(error)) from None

    def _completed(self, row: EventRow) -> EventRow:
        if row.kind not in CLASS_OF_KIND:
            return row
        try:
            return completed(row, self.blob)
        except Undecodable:
            return row  # whatever is wrong with it, the reader is about to say

    def _refused(self, rule: str, detail: str) -> ImportRefused:
        return ImportRefused(self.line, rule, detail)
