"""The lines of an export: one session as JSONL, every stored byte that the hash chain covers.

    {"flightlog_export":1,"session":…,"uid":…}
    {"blob":sha256,"base64":…}                       each payload once, before the first row that needs it
    {"seq":1,"at":…,"kind":"session/created",…}      one line a row
    {"rows":count,"head":digest of the last row}

Each line has exactly one form, so an import that is exported again yields the same bytes.
"""

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple, get_type_hints

from flightlog.core import canonical
from flightlog.store.codec import CLASS_OF_KIND
from flightlog.store.rows import EventRow
from flightlog_hookspecs.errors import BadPayload

EXPORT_FORMAT: Final = 1

Pieces = list[tuple[int, str]]


class Header(NamedTuple):
    """The first line: what the export is of."""

    session: str
    uid: str


class BlobLine(NamedTuple):
    """A payload."""

    digest: bytes
    content: bytes


class RowLine(NamedTuple):
    """A row, without its file-local key, and the texts of its deltas."""

    row: EventRow
    pieces: Pieces


class Closing(NamedTuple):
    """The last line: how many rows there were, and the digest of the last."""

    rows: int
    head: bytes


Line = Header | BlobLine | RowLine | Closing


class BadLine(Exception):
    """A line that no export holds."""


# Columns repeat what the data says, so they are not exported; of a kind that only a newer version
# knows nobody here can derive them again, so they are.
_COLUMNS: Final = EventRow._fields[8 : EventRow._fields.index("text")]
_NUMBERS: Final = frozenset(name for name in _COLUMNS if "int" in str(get_type_hints(EventRow)[name]))
_REQUIRED: Final[dict[str, type]] = {"seq": int, "at": int, "kind": str, "epoch": int, "data": str, "digest": str}
_OPTIONAL: Final[dict[str, type]] = {
    "turn": int,
    "step": int,
    "ignorable": bool,
    "text": str,
    "text_blob": str,
    "columns": dict,
    "deltas": list,
}


def written(line: Line) -> bytes:
    """`line` as bytes, its line end included."""
    match line:
        case Header():
            value: dict[str, Any] = {"flightlog_export": EXPORT_FORMAT, "session": line.session, "uid": line.uid}
        case BlobLine():
            value = {"blob": line.digest.hex(), "base64": base64.b64encode(line.content).decode()}
        case RowLine():
            value = _row_value(line.row, line.pieces)
        case Closing():
            value = {"rows": line.rows, "head": line.head.hex()}
    return canonical.dumps(value).encode() + b"\n"


def _row_value(row: EventRow, pieces: Pieces) -> dict[str, Any]:
    columns = {} if row.kind in CLASS_OF_KIND else {name: getattr(row, name) for name in _COLUMNS}
    value = {
        "seq": row.seq,
        "at": row.at,
        "kind": row.kind,
        "turn": row.turn,
        "step": row.step,
        "epoch": row.epoch,
        "ignorable": True if row.ignorable else None,
        "text": row.text,
        "text_blob": row.text_blob.hex() if row.text_blob else None,
        "data": row.data,
        "columns": {name: column for name, column in columns.items() if column is not None} or None,
        "deltas": [list(piece) for piece in pieces] or None,
        "digest": row.digest.hex(),
    }
    return {name: part for name, part in value.items() if part is not None}


def parsed(raw: bytes) -> Line:
    """The line that `raw` is. Raises `BadLine` unless an export would write it just so."""
    try:
        value = canonical.loads(raw.decode())
    except UnicodeDecodeError:
        raise BadLine("is not UTF-8") from None
    except BadPayload as error:
        raise BadLine(f"is not JSON as an export holds it: {error.reason}") from None
    try:
        line = _line(value)
        same = written(line) == raw
    except (KeyError, TypeError, ValueError, AttributeError, BadPayload):
        same = False
    if not same:
        raise BadLine("is not a line as an export writes it")
    return line


def _line(value: Any) -> Line:
    if "flightlog_export" in value:
        if value["flightlog_export"] != EXPORT_FORMAT:
            raise BadLine(f"is of export format {value['flightlog_export']}, this flightlog knows {EXPORT_FORMAT}")
        return Header(_text(value["session"]), _text(value["uid"]))
    if "blob" in value:
        return BlobLine(bytes.fromhex(value["blob"]), base64.b64decode(value["base64"], validate=True))
    if "rows" in value:
        return Closing(value["rows"], bytes.fromhex(value["head"]))
    return _row_line(value)


def _row_line(value: dict[str, Any]) -> RowLine:
    for name, part in value.items():
        if type(part) is not (_REQUIRED.get(name) or _OPTIONAL[name]):
            raise TypeError(name)
        if type(part) is str:
            _text(part)
    columns = value.get("columns", {})
    wanted = {name: int if name in _NUMBERS else str for name in _COLUMNS}
    if any(type(_text(part)) is not wanted.get(name) for name, part in columns.items()):
        raise TypeError("columns")
    pieces = [(at_ms, _text(text)) for at_ms, text in value.get("deltas", [])]
    if any(type(at_ms) is not int or type(text) is not str for at_ms, text in pieces):
        raise TypeError("deltas")
    text_blob = value.get("text_blob")
    row = EventRow(
        session=0,
        seq=value["seq"],
        kind=value["kind"],
        at=value["at"],
        turn=value.get("turn"),
        step=value.get("step"),
        epoch=value["epoch"],
        ignorable=int("ignorable" in value),
        **{name: columns.get(name) for name in _COLUMNS},
        text=value.get("text"),
        text_blob=bytes.fromhex(text_blob) if text_blob else None,
        data=value["data"],
        digest=bytes.fromhex(value["digest"]),
    )
    return RowLine(row, pieces)


def _text(value: Any) -> Any:
    """`value`, unless it is a text that SQLite would not give back as it is."""
    if type(value) is str and not canonical.is_faithful(value):
        raise ValueError("NUL or a lone surrogate")
    return value
