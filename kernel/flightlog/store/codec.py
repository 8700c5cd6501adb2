"""The one place that turns events into rows and back. Lossless, or refused before any effect.

A row's `data` is the event in canonical JSON. Its words stand once, in `text`: `data` then only says
how many characters each block has. Words a SQLite text column cannot keep (NUL, lone surrogates)
stay in `data`, and `text` shows U+FFFD for them. Payloads over 64 KiB move to the blob table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, get_args

import cattrs
from attrs import has
from cattrs.strategies import configure_tagged_union

from flightlog.core import canonical
from flightlog.core.history import place_of
from flightlog.core.limits import BLOB_MIN_BYTES
from flightlog_hookspecs.content import Block, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    DeltaPiece,
    Event,
    InboxSplice,
    Message,
    Record,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionCreated,
    ToolCall,
    ToolResult,
    TurnEnd,
    UnknownEvent,
    UserMessage,
)

FORMAT: Final = 1
"""Version of the row format, covered by every digest."""

_EXCERPT_CHARS: Final = 1000
_BLOCK_TAGS: Final = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "tool_call"}
_LIFTED_FIELD: Final = {"tool/call": "arguments", "request/failed": "message", "turn/end": "message"}

CLASS_OF_KIND: Final[dict[str, type]] = {cls.kind: cls for cls in get_args(Event) if cls is not UnknownEvent}


class EventRow(NamedTuple):
    """A row of `events` without its file-local id, in the order of `insert_event`."""

    session: int
    seq: int
    kind: str
    at: int
    turn: int | None
    step: int | None
    epoch: int
    ignorable: int
    attempt: int | None
    position: int | None
    place: int | None
    ref_seq: int | None
    call_id: str | None
    message_id: str | None
    slot: str | None
    role: str | None
    name: str | None
    status: str | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    duration_us: int | None
    text: str | None
    text_blob: bytes | None
    data: str
    digest: bytes


class Derived(NamedTuple):
    """The columns that repeat parts of the event for the views."""

    attempt: int | None = None
    position: int | None = None
    ref_seq: int | None = None
    call_id: str | None = None
    message_id: str | None = None
    slot: str | None = None
    role: str | None = None
    name: str | None = None
    status: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    duration_us: int | None = None


class Encoded(NamedTuple):
    """What one event adds to the tables: its row, large payloads, texts of deltas (at_ms, text)."""

    row: EventRow
    blobs: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[tuple[int, str], ...]


class Undecodable(Exception):
    """A row that is not what any version of the codec writes. `rule` names what is wrong."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule
        self.detail = detail


def encode(record: Record, key: int, uid: str, previous: bytes) -> Encoded:
    """`record` as rows, chained to the row whose digest is `previous`. Raises `BadPayload`."""
    data, text, pieces = _unstructured(record.event)
    blobs: list[tuple[bytes, bytes]] = []
    text_blob: bytes | None = None
    if text is not None and len(text) * 4 > BLOB_MIN_BYTES and len(raw := text.encode()) > BLOB_MIN_BYTES:
        text_blob = sha256(raw).digest()
        blobs.append((text_blob, raw))
        text = text[:_EXCERPT_CHARS]
    if len(data) * 4 > BLOB_MIN_BYTES and len(raw := data.encode()) > BLOB_MIN_BYTES:
        digest = sha256(raw).digest()
        blobs.append((digest, raw))
        data = '{"$blob":"' + digest.hex() + '"}'
    event = record.event
    derived = _derived(event)
    place = place_of(event, record.seq)
    row = EventRow(
        key,
        record.seq,
        event.kind,
        record.at_us,
        record.turn,
        record.step,
        record.epoch,
        int(record.ignorable),
        derived.attempt,
        derived.position,
        place[0] if place else None,
        *derived[2:],
        text,
        text_blob,
        data,
        b"",
    )
    return Encoded(row._replace(digest=chained(previous, uid, row)), tuple(blobs), pieces)


def chained(previous: bytes, uid: str, row: EventRow) -> bytes:
    """The digest of `row`: sha256 over the digest before it and its stored facts, lengths stated.

    Derived columns and file-local keys stay out, so that export and import keep the chain.
    """
    kind, data, text = row.kind.encode(), row.data.encode(), b"" if row.text is None else row.text.encode()
    blob = row.text_blob or b""
    facts = (
        f"{FORMAT};{uid};{row.seq};{row.at};{row.turn};{row.step};{row.epoch};{row.ignorable};"
        f"{len(kind)};{len(data)};{row.text is not None}{len(text)};{len(blob)};"
    )
    return sha256(b"".join((previous, facts.encode(), kind, data, text, blob))).digest()


def decode(
    row: EventRow, session: str, blob: Callable[[bytes], bytes], pieces: list[tuple[int, str]] | None = None
) -> Record:
    """The record in `row`; `blob` fetches payloads by digest, `pieces` are a delta's texts if wanted.

    Raises `Undecodable` unless every column is exactly what `encode` would write.
    """
    cls = CLASS_OF_KIND.get(row.kind)
    if cls is None:
        if not row.ignorable:
            raise Undecodable(
                "kind-known", f"kind {row.kind!r} was written by a newer version of flightlog or a missing plugin"
            )
        event: Any = UnknownEvent(kind=row.kind, data=row.data)
    else:
        event = _structured(cls, row, blob, pieces)
        place = place_of(event, row.seq)
        derived = _derived(event)
        stored = (row.attempt, row.position, *row[11:22])
        if stored != derived or row.place != (place[0] if place else None):
            names = [name for name, a, b in zip(Derived._fields, stored, derived, strict=True) if a != b] or ["place"]
            raise Undecodable("columns-derived", f"column {names[0]} differs from the event it is derived from")
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


def decode_message(kind: str, text: str | None, data: str, blob: Callable[[bytes], bytes]) -> Message:
    """The message in a row of the `messages` view, whose `text` is whole."""
    value = json.loads(data)
    if "$blob" in value:
        value = json.loads(_fetched(blob, bytes.fromhex(value["$blob"])))
    _drop_blocks(value["content"], text or "")
    message: Message = _converter().structure(value, CLASS_OF_KIND[kind])
    return message


def _unstructured(event: Event) -> tuple[str, str | None, tuple[tuple[int, str], ...]]:
    """The event's data, its lifted text, and its delta texts."""
    if isinstance(event, UnknownEvent):
        return event.data, None, ()
    if isinstance(event, AssistantDelta):
        return _delta(event)
    value: dict[str, Any] = _converter().unstructure(event)
    text: str | None = None
    if (blocks := value.get("content")) is not None:
        text = _lift_blocks(blocks)
    elif (name := _LIFTED_FIELD.get(event.kind)) and (words := value.get(name)):
        if canonical.is_faithful(words):
            del value[name]
        text = canonical.displayed(words)
    return canonical.dumps(value), text, ()


def _lift_blocks(blocks: list[dict[str, Any]]) -> str:
    texts = [block for block in blocks if block["type"] == "text"]
    words = "".join(block["text"] for block in texts)
    if not canonical.is_faithful(words):
        return canonical.displayed(words)
    for block in texts:
        block["chars"] = len(block.pop("text"))
    return words


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
    return canonical.dumps(value), None, tuple((at_ms, canonical.displayed(text)) for at_ms, text in exact)


def _hash_of(pieces: list[tuple[int, str]]) -> str:
    return sha256(canonical.dumps([[at_ms, text] for at_ms, text in pieces]).encode()).hexdigest()


def _structured(cls: type, row: EventRow, blob: Callable[[bytes], bytes], pieces: list[tuple[int, str]] | None) -> Any:
    try:
        value = json.loads(row.data)
        if "$blob" in value:
            value = json.loads(_fetched(blob, bytes.fromhex(value["$blob"])))
        if cls is AssistantDelta:
            return _delta_from(value, pieces)
        text = row.text if row.text_blob is None else _fetched(blob, row.text_blob).decode()
        if (blocks := value.get("content")) is not None:
            _drop_blocks(blocks, text or "")
        elif (name := _LIFTED_FIELD.get(row.kind)) and text is not None and name not in value:
            value[name] = text
        return _converter().structure(value, cls)
    except Undecodable:
        raise
    except Exception as error:
        # cattrs and json raise many types; whatever it is, the row is not one of ours.
        raise Undecodable(
            "data-shape", f"data of {row.kind} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _drop_blocks(blocks: list[dict[str, Any]], text: str) -> None:
    start = 0
    for block in blocks:
        if "chars" in block:
            end = start + block.pop("chars")
            block["text"], start = text[start:end], end
    if start not in (0, len(text)):
        raise Undecodable("text-length", f"text has {len(text)} characters, its blocks {start}")


def _delta_from(value: dict[str, Any], pieces: list[tuple[int, str]] | None) -> AssistantDelta:
    delta = AssistantDelta(attempt=value["attempt"], block=value["block"], type=value["type"])
    if pieces is None:
        return delta
    if "exact" in value:
        pieces = [(at_ms, text) for (at_ms, _), text in zip(pieces, value["exact"], strict=True)]
    if _hash_of(pieces) != value["sha256"]:
        raise Undecodable("delta-hash", "the texts of this delta differ from their hash")
    return AssistantDelta(
        attempt=delta.attempt,
        block=delta.block,
        type=delta.type,
        pieces=tuple(DeltaPiece(at_ms=at_ms, text=text) for at_ms, text in pieces),
    )


def _fetched(blob: Callable[[bytes], bytes], digest: bytes) -> bytes:
    raw = blob(digest)
    if sha256(raw).digest() != digest:
        raise Undecodable("blob-hash", f"blob {digest.hex()} is missing or differs from its digest")
    return raw


def _derived(event: Event) -> Derived:
    shown = canonical.displayed
    match event:
        case AssistantDelta():
            return Derived(attempt=event.attempt, position=event.block, name=event.type)
        case ToolResult():
            return Derived(
                position=event.position,
                ref_seq=event.call_seq,
                call_id=shown(event.call_id),
                role="tool",
                name=shown(event.name),
                status=event.outcome,
                duration_us=event.duration_us,
            )
        case ToolCall():
            return Derived(
                position=event.position, call_id=shown(event.call_id), name=shown(event.name), status=event.effect
            )
        case UserMessage():
            return Derived(message_id=shown(event.message_id), role="user", status=event.source)
        case AssistantMessage():
            return Derived(
                attempt=event.attempt,
                role="assistant",
                status=event.finish,
                input_tokens=event.input_tokens,
                output_tokens=event.output_tokens,
                cached_tokens=event.cached_tokens,
            )
        case InboxSplice():
            enters = event.content is not None
            return Derived(
                message_id=shown(event.message_id), slot=event.slot, role="user" if enters else None, status=event.cause
            )
        case RequestSent():
            return Derived(attempt=event.attempt, ref_seq=event.header_seq, status=event.purpose)
        case RequestHeader():
            return Derived(name=shown(f"{event.head.adapter}:{event.head.model}"), status=event.reason)
        case RequestFailed():
            return Derived(attempt=event.attempt, status=event.failure)
        case RequestRetry():
            return Derived(attempt=event.attempt)
        case TurnEnd():
            return Derived(status=event.reason)
        case SessionCreated():
            return Derived(name=shown(event.title))
        case _:
            return Derived()


@cache
def _converter() -> cattrs.Converter:
    """Cattrs with its traps closed: strict primitives, no unknown fields, blocks tagged by `type`."""
    converter = cattrs.Converter(forbid_extra_keys=True, omit_if_default=True, detailed_validation=False)
    for primitive in (str, int, bool):
        converter.register_structure_hook(primitive, _strict(primitive))
    for block in _BLOCK_TAGS:
        converter.register_structure_hook(block, cattrs.gen.make_dict_structure_fn(block, converter))
    configure_tagged_union(Block, converter, tag_name="type", tag_generator=_BLOCK_TAGS.__getitem__)
    return converter


def _strict(primitive: type) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not primitive:
            raise TypeError(f"expected {primitive.__name__}, found {type(value).__name__}")
        return value

    return structure


assert all(has(cls) for cls in CLASS_OF_KIND.values())
