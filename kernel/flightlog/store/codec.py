"""The one place that turns events into rows and back. Lossless, or refused before any effect.

A row's `data` is the event in canonical JSON. Its words stand once, in `text`: `data` then only says
how many characters each block has. Words a SQLite text column cannot keep (NUL, lone surrogates)
stay in `data`, and `text` shows U+FFFD for them. Payloads over 64 KiB move to the blob table, and so do
the bytes of files, of which `data` has name, media type, size and hash. They come back only when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Final, TypeVar, get_args

from attrs import evolve, has

from flightlog.core import canonical
from flightlog.core.files import files_in, filled
from flightlog.core.limits import BLOB_MIN_BYTES, EXCERPT_CHARS
from flightlog.core.shape import misfit
from flightlog.store.derived import Derived, derived_from
from flightlog.store.rows import Encoded, EventRow
from flightlog.store.structure import SHA256, converter, structure_of, unstructure_of
from flightlog_hookspecs.content import text_of
from flightlog_hookspecs.errors import BadPayload, StoreError
from flightlog_hookspecs.events import (
    AssistantDelta,
    DeltaPiece,
    Event,
    Message,
    Record,
    ToolResult,
    UnknownEvent,
)

V = TypeVar("V")

FORMAT: Final = 1
"""Version of the row format, covered by every digest."""

_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_LIFTED_FIELD: Final = {
    "tool/call": "arguments",
    "tool/progress": "text",
    "request/failed": "message",
    "turn/end": "message",
    "approval/asked": "question",
    "letter/taken": "reason",
    "subagent/spawned": "task",
    "subagent/settled": "result",
    "compaction/start": "instruction",
    "compaction/end": "message",
    "task/submitted": "goal",
    "task/amended": "goal",
    "task/state": "message",
    "goal/checked": "missing",
    "checkpoint/written": "summary",
    "checkpoint/skipped": "why",
    "budget/alert": "message",
    "budget/degraded": "reason",
    "plugin/error": "error",
    "session/repaired": "detail",
}

CLASS_OF_KIND: Final[dict[str, type]] = {cls.kind: cls for cls in get_args(Event) if cls is not UnknownEvent}


_DERIVED: Final = slice(EventRow._fields.index(Derived._fields[0]), EventRow._fields.index("text"))
"""Where the columns stand that are derived from the event."""


class Undecodable(Exception):
    """A row that is not what any version of the codec writes. `rule` names what is wrong."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule
        self.detail = detail


def encode(record: Record, key: int, uid: str, previous: bytes) -> Encoded:
    """`record` as rows, chained to the row whose digest is `previous`. Raises `BadPayload`."""
    event = record.event
    if isinstance(event, UnknownEvent) and not record.ignorable:
        raise BadPayload("$", f"{event.kind!r} is unknown and not ignorable: nobody could read it back")
    if wrong := misfit(event):
        raise BadPayload(f"$.{wrong}", f"{event.kind} cannot hold this {type(getattr(event, wrong)).__name__} there")
    data, words, pieces = _unstructured(event)
    blobs = file_blobs(event)
    text, text_blob, raw = _shown(words)
    if raw and text_blob:
        blobs.append((text_blob, raw))
    if raw := _large(data):
        digest = sha256(raw).digest()
        blobs.append((digest, raw))
        data = '{"$blob":"' + digest.hex() + '"}'
    facts = (record.seq, event.kind, record.at_us, record.turn, record.step, record.epoch, int(record.ignorable))
    digest = _digest(previous, uid, facts, text, text_blob, data)
    row = EventRow._make((key, *facts, *derived_from(event, record.seq), text, text_blob, data, digest))
    return Encoded(row, tuple(blobs), pieces)


def encoded_log(records: Iterable[Record], uid: str) -> list[Encoded]:
    """A whole session as rows, for a file that has still to give it a key. Raises `BadPayload`."""
    rows: list[Encoded] = []
    for record in records:
        rows.append(encode(record, 0, uid, rows[-1].row.digest if rows else b""))
    return rows


def file_blobs(value: object) -> list[tuple[bytes, bytes]]:
    """The files in an event or a letter, each once, as (digest, bytes). Raises `BadPayload` for what is no hash.

    Those without their bytes are in the file already.
    """
    if not (files := files_in(value)):
        return []
    if wrong := [file for file in files if not SHA256.fullmatch(file.sha256)]:
        raise BadPayload("$.content", f"{wrong[0].sha256!r} is not the sha256 of a file")
    data = {file.sha256: file.data for file in files if file.data}
    return [(bytes.fromhex(digest), content) for digest, content in data.items()]


def with_files(message: Message, blob: Callable[[bytes], bytes]) -> Message:
    """`message` with the bytes of its files, which `blob` fetches by digest. Raises `Undecodable`."""
    return filled(message, {file.sha256: fetched(blob, bytes.fromhex(file.sha256)) for file in files_in(message)})


def _large(text: str) -> bytes | None:
    """`text` encoded, if it is too large to stand in a row."""
    if len(text) * 4 > BLOB_MIN_BYTES and len(raw := text.encode()) > BLOB_MIN_BYTES:
        return raw
    return None


def _shown(words: str | None) -> tuple[str | None, bytes | None, bytes | None]:
    """What `text` and `text_blob` hold of an event's words, and the payload that the latter stands for."""
    if words is None:
        return None, None, None
    text = canonical.displayed(words)
    if not (raw := _large(text)):
        return text, None, None
    return text[:EXCERPT_CHARS], sha256(raw).digest(), raw


def chained(previous: bytes, uid: str, row: EventRow) -> bytes:
    """The digest `row` must have when the row before it has `previous`."""
    return _digest(previous, uid, row[1:8], row.text, row.text_blob, row.data)


def _digest(
    previous: bytes, uid: str, facts: tuple[Any, ...], text: str | None, text_blob: bytes | None, data: str
) -> bytes:
    """sha256 over the digest before it and the row's stored facts, lengths stated.

    Derived columns and file-local keys stay out, so that export and import keep the chain.
    """
    seq, kind, at, turn, step, epoch, ignorable = facts
    raw = data.encode()
    words = b"" if text is None else text.encode()
    blob = text_blob or b""
    stated = (
        f"{FORMAT};{uid};{seq};{at};{turn};{step};{epoch};{ignorable};"
        f"{len(kind.encode())};{len(raw)};{text is not None}{len(words)};{len(blob)};{kind}"
    )
    return sha256(b"".join((previous, stated.encode(), raw, words, blob))).digest()


def decode(
    row: EventRow, session: str, blob: Callable[[bytes], bytes], pieces: list[tuple[int, str]] | None = None
) -> Record:
    """The record in `row`; `blob` fetches payloads by digest, `pieces` are a delta's texts if wanted.

    Raises `Undecodable` unless every column is exactly what `encode` would write.
    """
    cls = CLASS_OF_KIND.get(row.kind, UnknownEvent)
    if cls is UnknownEvent and not row.ignorable:
        raise Undecodable(
            "kind-known", f"kind {row.kind!r} was written by a newer version of flightlog or a missing plugin"
        )
    event = _structured(cls, row, blob, pieces)
    _compare(event, row)
    return Record(
        session=session,
        seq=row.seq,
        at_us=row.at,
        turn=row.turn,
        step=row.step,
        epoch=row.epoch,
        event=event,
        ignorable=bool(row.ignorable),
    )


def completed(row: EventRow, blob: Callable[[bytes], bytes]) -> EventRow:
    """`row` with the columns that its event gives it, whatever they were. For kinds we know."""
    event = _structured(CLASS_OF_KIND[row.kind], row, blob, None)
    return EventRow._make((*row[: _DERIVED.start], *derived_from(event, row.seq), *row[_DERIVED.stop :]))


def payloads_of(row: EventRow, event: Event) -> tuple[bytes, ...]:
    """The digests of the payloads that a row refers to, each once: words, data, a spilled result in full, files."""
    digests = [row.text_blob] if row.text_blob else []
    if row.data.startswith('{"$blob":'):
        digests.append(bytes.fromhex(json.loads(row.data)["$blob"]))
    if isinstance(event, ToolResult) and event.spill:
        digests.append(bytes.fromhex(event.spill.sha256))
    digests += [bytes.fromhex(file.sha256) for file in files_in(event)]
    return tuple(dict.fromkeys(digests))


def _compare(event: Event, row: EventRow) -> None:
    """Raise `Undecodable` unless the columns of `row` are those that `event` is written with."""
    columns: tuple[Any, ...] = row
    stored, derived = columns[_DERIVED], derived_from(event, row.seq)
    if isinstance(event, UnknownEvent):
        if row.place is not None:
            raise Undecodable("columns-derived", "column place shows a message where no version has one")
        return  # what a newer version shows in its other columns is not for this one to judge
    if stored != derived:
        names = [name for name, a, b in zip(Derived._fields, stored, derived, strict=True) if a != b]
        raise Undecodable("columns-derived", f"column {names[0]} differs from the event it is derived from")
    text, text_blob, _ = _shown(_words(event))
    if row.text != text or row.text_blob != text_blob:
        raise Undecodable("columns-derived", "column text differs from the event's words")


def _words(event: Event) -> str | None:
    """What `text` shows: the words of a message, the arguments of a call, the message of an error."""
    if (content := getattr(event, "content", None)) is not None:
        return text_of(content)
    name = _LIFTED_FIELD.get(event.kind)
    return getattr(event, name) or None if name else None


def decode_message(kind: str, text: str | None, data: str, blob: Callable[[bytes], bytes]) -> Message:
    """The message in a row of the `messages` view, whose `text` is whole."""
    try:
        value = _parsed(_data(data, blob))
        _drop_blocks(value["content"], text or "")
        message: Message = structure_of(CLASS_OF_KIND[kind])(value, CLASS_OF_KIND[kind])
    except (Undecodable, StoreError):
        raise  # a payload that cannot be fetched just now says nothing about the row
    except Exception as error:
        raise _misshapen(kind, error) from error
    return message


def _unstructured(event: Event) -> tuple[str, str | None, tuple[tuple[int, str], ...]]:
    """The event's data, its words, and its delta texts."""
    if isinstance(event, UnknownEvent):
        return _foreign(event), None, ()
    if isinstance(event, AssistantDelta):
        return _delta(event)
    cls: type = type(event)
    value: dict[str, Any] = unstructure_of(cls)(event)
    words = _words(event)
    if words is not None and canonical.is_faithful(words):  # so they stand in `text`, and nowhere else
        if (blocks := value.get("content")) is None:
            del value[_LIFTED_FIELD[event.kind]]
        else:
            for block in blocks:
                if block["type"] == "text":
                    block["chars"] = len(block.pop("text"))
    return canonical.dumps_typed(value), words, ()


def _foreign(event: UnknownEvent) -> str:
    """The data of a kind that another version or a plugin wrote, verbatim."""
    if event.kind in CLASS_OF_KIND or not canonical.is_faithful(event.kind + event.data):
        raise BadPayload("$", f"{event.kind!r} is not an unknown kind with its data in canonical JSON")
    if not isinstance(value := canonical.loads(event.data), dict) or "$blob" in value:
        raise BadPayload("$", f"the data of {event.kind!r} is not an object of its own")
    return event.data


def _delta(event: AssistantDelta) -> tuple[str, None, tuple[tuple[int, str], ...]]:
    exact = [(piece.at_ms, piece.text) for piece in event.pieces]
    value: dict[str, Any] = {
        "attempt": event.attempt,
        "block": event.block,
        "type": event.type,
        "sha256": _hash_of(exact),
    }
    if not all(canonical.is_faithful(text) for _, text in exact):
        value["exact"] = [text for _, text in exact]
    return canonical.dumps_typed(value), None, tuple((at_ms, canonical.displayed(text)) for at_ms, text in exact)


def _hash_of(pieces: list[tuple[int, str]]) -> str:
    return sha256(canonical.dumps_typed([[at_ms, text] for at_ms, text in pieces]).encode()).hexdigest()


def _structured(cls: type, row: EventRow, blob: Callable[[bytes], bytes], pieces: list[tuple[int, str]] | None) -> Any:
    try:
        data = _data(row.data, blob)
        if cls is UnknownEvent:
            return UnknownEvent(kind=row.kind, data=data)
        value = _parsed(data)
        if cls is AssistantDelta:
            return _delta_from(value, pieces)
        text = row.text if row.text_blob is None else fetched(blob, row.text_blob).decode()
        if (blocks := value.get("content")) is not None:
            _drop_blocks(blocks, text or "")
        elif (name := _LIFTED_FIELD.get(row.kind)) and text is not None and name not in value:
            value[name] = text
        return structure_of(cls)(value, cls)
    except (Undecodable, StoreError):
        raise  # a payload that cannot be fetched just now says nothing about the row
    except Exception as error:
        raise _misshapen(row.kind, error) from error


def _misshapen(kind: str, error: Exception) -> Undecodable:
    """What to raise for whatever json and cattrs have raised: the row is not one of ours."""
    return Undecodable("data-shape", f"data of {kind} cannot be read: {type(error).__name__}: {error}")


def _drop_blocks(blocks: list[dict[str, Any]], text: str) -> None:
    start = 0
    for block in blocks:
        if "chars" in block:
            end = start + block.pop("chars")
            block["text"], start = text[start:end], end
    if start > len(text):
        raise Undecodable("text-length", f"text has {len(text)} characters, its blocks {start}")


def _delta_from(value: dict[str, Any], pieces: list[tuple[int, str]] | None) -> AssistantDelta:
    digest, exact = value.pop("sha256"), value.pop("exact", None)
    delta: AssistantDelta = structure_of(AssistantDelta)(value, AssistantDelta)
    if pieces is None:
        return delta
    if exact is not None:
        if [text for _, text in pieces] != [canonical.displayed(text) for text in exact]:
            raise Undecodable("delta-hash", "the texts of this delta differ from their exact form")
        pieces = [(at_ms, text) for (at_ms, _), text in zip(pieces, exact, strict=True)]
    if _hash_of(pieces) != digest:
        raise Undecodable("delta-hash", "the texts of this delta differ from their hash")
    return evolve(delta, pieces=tuple(DeltaPiece(at_ms=at_ms, text=text) for at_ms, text in pieces))


def _parsed(data: str) -> Any:
    """The value in canonical JSON. A fifth of the price of `json.loads`, which looks for white space around it."""
    value, end = _SCAN(data, 0)
    if end != len(data):
        raise ValueError("more follows the value")
    return value


def _data(data: str, blob: Callable[[bytes], bytes]) -> str:
    """The row's data, fetched when it was too large to stand in it."""
    if not data.startswith('{"$blob":'):
        return data
    return fetched(blob, bytes.fromhex(json.loads(data)["$blob"])).decode()


def fetched(blob: Callable[[bytes], bytes], digest: bytes) -> bytes:
    """The payload with that sha256. Raises `Undecodable` when `blob` brings another or none."""
    raw = blob(digest)
    if sha256(raw).digest() != digest:
        raise Undecodable("blob-hash", f"blob {digest.hex()} is missing or differs from its digest")
    return raw


def unstructured_value(value: object) -> Any:
    """`value`, of an attrs class of the vocabulary, as JSON has it."""
    return converter().unstructure(value)


def structured_value(data: str, cls: type[V]) -> V:
    """The `cls` in canonical JSON `data`. Raises `Undecodable` when it holds something else."""
    try:
        value: V = converter().structure(json.loads(data), cls)
    except Exception as error:
        raise _misshapen(cls.__name__, error) from error
    return value


assert all(has(cls) for cls in CLASS_OF_KIND.values())
