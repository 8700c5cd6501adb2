"""Whatever an event holds, the log gives back exactly that, or refused it before anything was written."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Literal, get_args, get_type_hints

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core import canonical
from flightlog.core.files import files_in, filled
from flightlog.core.limits import BLOB_MIN_BYTES, EXCERPT_CHARS
from flightlog.store.codec import (
    CLASS_OF_KIND,
    Undecodable,
    chained,
    decode,
    decode_message,
    encode,
    payloads_of,
    with_files,
)
from flightlog.store.rows import Encoded, EventRow
from flightlog_hookspecs.content import FileBlock, TextBlock, text_of
from flightlog_hookspecs.errors import BadPayload
from flightlog_hookspecs.events import (
    ApprovalAsked,
    AssistantDelta,
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    CheckpointSkipped,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    DeltaPiece,
    Event,
    GoalChecked,
    LetterTaken,
    Message,
    PluginFault,
    Record,
    RequestFailed,
    SessionRepaired,
    SubagentSettled,
    SubagentSpawned,
    TaskAmended,
    TaskState,
    TaskSubmitted,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from support import values

KEY, UID, PREVIOUS = 7, "uid", b"\1" * 32


def encoded(record: Record) -> Encoded:
    return encode(record, KEY, UID, PREVIOUS)


def record_of(event: Event, **envelope: Any) -> Record:
    place = {"session": "s", "seq": 2, "at_us": 1, "turn": 1, "step": 1, "epoch": 1, **envelope}
    return Record(**place, event=event)


def decoded(rows: Encoded, **changes: Any) -> Record:
    """What a reader finds that reads everything, texts of deltas included."""
    return decode(rows.row._replace(**changes), "s", dict(rows.blobs).__getitem__, list(rows.pieces))


def with_data(record: Record, rows: Encoded) -> Record:
    """`record` with the bytes of its files, too."""
    blobs = dict(rows.blobs)
    data = {file.sha256: blobs[bytes.fromhex(file.sha256)] for file in files_in(record.event)}
    return evolve(record, event=filled(record.event, data))


def words_of(event: Any) -> str | None:
    """The words that stand in the row's text column, as the event has them."""
    match event:
        case ToolCall():
            return event.arguments or None
        case ToolProgress():
            return event.text or None
        case RequestFailed() | TurnEnd():
            return event.message or None
        case ApprovalAsked():
            return event.question or None
        case LetterTaken():
            return event.reason or None
        case SubagentSpawned():
            return event.task or None
        case SubagentSettled():
            return event.result or None
        case CompactionStart():
            return event.instruction or None
        case CompactionEnd():
            return event.message or None
        case TaskSubmitted() | TaskAmended():
            return event.goal or None
        case TaskState():
            return event.message or None
        case GoalChecked():
            return event.missing or None
        case CheckpointWritten():
            return event.summary or None
        case CheckpointSkipped():
            return event.why or None
        case BudgetAlert():
            return event.message or None
        case BudgetDegraded():
            return event.reason or None
        case PluginFault():
            return event.error or None
        case SessionRepaired():
            return event.detail or None
        case _:
            content = getattr(event, "content", None)
            return None if content is None else text_of(content)


NAMES = {"name", "call_id", "message_id", "status", "currency"}
"""Columns that hold what other places refer to by it, as long as it is."""

each_class = pytest.mark.parametrize("cls", values.EVENT_CLASSES, ids=lambda cls: cls.__name__)


@each_class
@given(data=st.data())
def test_any_event_comes_back_as_it_was(cls: type, data: st.DataObject) -> None:
    record = data.draw(values.records(cls))
    rows = encoded(record)
    assert decoded(rows) == record
    assert chained(PREVIOUS, UID, rows.row) == rows.row.digest
    assert encoded(with_data(decoded(rows), rows)) == rows, "and is written the same again"
    assert encoded(decoded(rows)).row == rows.row, "also without the bytes of its files, which are there already"
    check_row(record, rows)
    check_without_pieces(record, rows)
    if isinstance(record.event, Message):
        check_message(record, rows)


def check_row(record: Record, rows: Encoded) -> None:
    """A row is small and plain: large payloads stand beside it, text columns hold only what they can keep."""
    row = rows.row
    assert (row.session, row.seq, row.kind, row.at) == (KEY, record.seq, record.event.kind, record.at_us)
    assert (row.turn, row.step, row.epoch) == (record.turn, record.step, record.epoch)
    files = {file.sha256: file.data for file in files_in(record.event)}
    there = {digest.hex(): raw for digest, raw in rows.blobs}
    assert files.items() <= there.items()
    stored = evolve(record.event, spill=None) if isinstance(record.event, ToolResult) else record.event
    assert {digest.hex() for digest in payloads_of(row, stored)} == there.keys(), "an export takes all of them along"
    for digest, raw in rows.blobs:
        assert sha256(raw).digest() == digest
        assert len(raw) > BLOB_MIN_BYTES or digest.hex() in files
    for column, value in row._asdict().items():
        if isinstance(value, str):
            assert canonical.is_faithful(value), column
            assert len(value.encode()) <= BLOB_MIN_BYTES or column in {
                "name",
                "call_id",
                "message_id",
                "status",
                "currency",
            }
    assert isinstance(json.loads(row.data), dict)
    words = words_of(record.event)
    shown = None if words is None else canonical.displayed(words)
    if shown is None or len(shown.encode()) <= BLOB_MIN_BYTES:
        assert (row.text, row.text_blob) == (shown, None)
    else:
        assert row.text_blob is not None
        assert row.text == shown[:EXCERPT_CHARS]
        assert dict(rows.blobs)[row.text_blob].decode() == shown


def check_without_pieces(record: Record, rows: Encoded) -> None:
    without = decode(rows.row, "s", dict(rows.blobs).__getitem__)
    event = record.event
    assert without == (evolve(record, event=evolve(event, pieces=())) if isinstance(event, AssistantDelta) else record)
    pieces = event.pieces if isinstance(event, AssistantDelta) else ()
    assert rows.pieces == tuple((piece.at_ms, canonical.displayed(piece.text)) for piece in pieces)


def check_message(record: Record, rows: Encoded) -> None:
    """What the messages view shows of it is the message."""
    row = rows.row
    text = row.text if row.text_blob is None else dict(rows.blobs)[row.text_blob].decode()
    blob = dict(rows.blobs).__getitem__
    assert (read := decode_message(row.kind, text, row.data, blob)) == record.event
    assert not any(file.data for file in files_in(read)), "readers do not pay for bytes that they have not asked for"
    given = [file.data for file in files_in(record.event)]
    assert [file.data for file in files_in(with_files(read, blob))] == given


@each_class
def test_an_event_with_a_field_of_another_type_is_refused(cls: type) -> None:
    event = values.plainest(cls)
    for name in cls.__attrs_attrs__:  # type: ignore[attr-defined]
        wrong = evolve(event, **{name.name: object()})
        with pytest.raises(BadPayload) as refused:
            encoded(record_of(wrong, ignorable=True))
        assert refused.value.path == f"$.{name.name}"


MESSAGE = values.plainest(UserMessage)
RESULT = values.plainest(ToolResult)
ANSWER = values.plainest(AssistantMessage)
DELTA = values.plainest(AssistantDelta)
FILE = FileBlock.of(b"\x89PNG", name="cat.png")
PAIR = "\ud83d\ude00"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (evolve(RESULT, duration_us=2**63), "64 bits"),
        (evolve(RESULT, call_seq=-(2**63) - 1), "64 bits"),
        (evolve(ANSWER, input_tokens=2**70), "64 bits"),
        (evolve(ANSWER, input_tokens=1.0), r"\$.input_tokens"),
        (evolve(ANSWER, input_tokens=None), r"\$.input_tokens"),
        (evolve(ANSWER, output_tokens=True), r"\$.output_tokens"),
        (evolve(ANSWER, finish="end_turn"), r"\$.finish"),
        (evolve(MESSAGE, message_id=PAIR), "surrogate pair"),
        (evolve(MESSAGE, content=(TextBlock(text=PAIR),)), "surrogate pair"),
        (evolve(MESSAGE, content=[]), r"\$.content"),
        (evolve(MESSAGE, content=(evolve(FILE, name=PAIR),)), "surrogate pair"),
        (evolve(MESSAGE, content=(evolve(FILE, sha256="AB" * 32),)), "not the sha256 of a file"),
        (evolve(MESSAGE, content=(evolve(FILE, sha256=""),)), "not the sha256 of a file"),
        (evolve(MESSAGE, content=(evolve(FILE, data=bytearray(b"x")),)), r"\$.content"),
        (evolve(DELTA, pieces=(DeltaPiece(at_ms=0, text=PAIR),)), "surrogate pair"),
        (evolve(DELTA, pieces=(DeltaPiece(at_ms=2**63, text=""),)), "64 bits"),
        (UnknownEvent(kind="turn/start", data="{}"), "not an unknown kind"),
        (UnknownEvent(kind="test/\ud800", data="{}"), "not an unknown kind"),
        (UnknownEvent(kind="test/note", data='{"a":"\ud800"}'), "not an unknown kind"),
        (UnknownEvent(kind="test/note", data='{"a":1,"a":2}'), "duplicate key"),
        (UnknownEvent(kind="test/note", data="{"), "Expecting property name"),
        (UnknownEvent(kind="test/note", data="[]"), "not an object"),
        (UnknownEvent(kind="test/note", data='{"$blob":"00"}'), "not an object of its own"),
    ],
)
def test_what_could_not_be_read_back_is_refused(event: Any, why: str) -> None:
    with pytest.raises(BadPayload, match=why):
        encoded(record_of(event, ignorable=True))


def test_an_unknown_kind_that_nobody_may_skip_is_refused() -> None:
    with pytest.raises(BadPayload, match="not ignorable"):
        encoded(record_of(UnknownEvent(kind="test/note", data="{}")))


def test_halves_of_a_pair_in_two_pieces_stay_two_pieces() -> None:
    halves = (DeltaPiece(at_ms=0, text=PAIR[0]), DeltaPiece(at_ms=1, text=PAIR[1]))
    record = record_of(evolve(DELTA, pieces=halves))
    assert decoded(encoded(record)) == record


def test_a_repeated_payload_is_the_same_blob() -> None:
    large = evolve(MESSAGE, content=(TextBlock(text="x" * 100_000),))
    first, second = encoded(record_of(large)), encoded(record_of(large, seq=9))
    assert first.blobs == second.blobs
    assert len(first.blobs) == 1


@pytest.mark.parametrize("size", [BLOB_MIN_BYTES - 1, BLOB_MIN_BYTES, BLOB_MIN_BYTES + 1])
def test_a_text_moves_beside_its_row_when_it_is_over_the_bound(size: int) -> None:
    rows = encoded(record_of(evolve(MESSAGE, content=(TextBlock(text="x" * size),))))
    assert bool(rows.blobs) == (size > BLOB_MIN_BYTES)
    assert decoded(rows).event.content[0].text == "x" * size  # type: ignore[union-attr]


def test_the_words_stand_once() -> None:
    said = "the quick brown fox"
    row = encoded(record_of(evolve(ANSWER, content=(TextBlock(text=said),)))).row
    assert row.text == said
    assert said not in row.data


def test_the_bytes_of_a_file_stand_once_and_beside_the_row() -> None:
    message = evolve(MESSAGE, content=(TextBlock(text="see"), FILE, evolve(FILE, name="again.png")))
    row, blobs, *_ = encoded(record_of(message))
    assert blobs == ((bytes.fromhex(FILE.sha256), FILE.data),)
    assert row.text == "see", "the column of words has nothing of it"
    assert json.loads(row.data)["content"] == [
        {"type": "text", "chars": 3},
        {"media_type": "image/png", "sha256": FILE.sha256, "size_bytes": 4, "name": "cat.png", "type": "file"},
        {"media_type": "image/png", "sha256": FILE.sha256, "size_bytes": 4, "name": "again.png", "type": "file"},
    ]


@pytest.mark.parametrize("sha256", ["", "ab", "AB" * 32, "zz" * 32, "00" * 33])
def test_a_row_that_names_a_file_by_what_is_no_hash_is_refused(sha256: str) -> None:
    rows = encoded(record_of(evolve(MESSAGE, content=(FILE,))))
    with pytest.raises(Undecodable) as refused:
        decoded(rows, data=rows.row.data.replace(FILE.sha256, sha256))
    assert refused.value.rule == "data-shape"


@pytest.mark.parametrize("content", [b"", b"other"])
def test_a_file_whose_bytes_are_gone_or_others_is_not_handed_out(content: bytes) -> None:
    with pytest.raises(Undecodable) as refused:
        with_files(evolve(MESSAGE, content=(evolve(FILE, data=b""),)), lambda _: content)
    assert refused.value.rule == "blob-hash"


FACTS = ("seq", "kind", "at", "turn", "step", "epoch", "ignorable", "text", "text_blob", "data")


def test_the_chain_covers_every_stored_fact_and_what_came_before() -> None:
    row = encoded(record_of(evolve(MESSAGE, content=(TextBlock(text="hi"),)))).row
    assert set(EventRow._fields[1:8]) | {"text", "text_blob", "data"} == set(FACTS)
    for column in FACTS:
        old = getattr(row, column)
        other = b"\0" * 32 if column == "text_blob" else f"{old}x" if isinstance(old, str) else (old or 0) + 1
        assert chained(PREVIOUS, UID, row._replace(**{column: other})) != row.digest, column
    assert chained(b"\2" * 32, UID, row) != row.digest
    assert chained(PREVIOUS, "other", row) != row.digest
    assert chained(PREVIOUS, UID, row._replace(session=99, name="x", place=4)) == row.digest, "the rest is derived"


@pytest.mark.parametrize(
    "columns",
    [
        [{"text": "ab"}, {"text": "a"}],
        [{"text": None}, {"text": ""}],
        [{"kind": "ab", "data": "c"}, {"kind": "a", "data": "bc"}],
        [{"data": "ab", "text": "c"}, {"data": "a", "text": "bc"}],
        [{"text": "ab", "text_blob": None}, {"text": "a", "text_blob": b"b"}],
        [{"seq": 1, "at": 11}, {"seq": 11, "at": 1}],
        [{"turn": None, "step": 1}, {"turn": 1, "step": None}],
    ],
)
def test_no_two_rows_look_alike_to_the_chain(columns: list[dict[str, Any]]) -> None:
    row = encoded(record_of(TurnStart())).row
    one, other = (chained(PREVIOUS, UID, row._replace(**changes)) for changes in columns)
    assert one != other


def test_an_unknown_kind_is_kept_when_it_may_be_skipped_and_refused_when_not() -> None:
    row = encoded(record_of(UnknownEvent(kind="newer/thing", data='{"a":1}'), ignorable=True)).row
    assert decode(row, "s", dict[bytes, bytes]().__getitem__).event == UnknownEvent(kind="newer/thing", data='{"a":1}')
    with pytest.raises(Undecodable) as refused:
        decode(row._replace(ignorable=0), "s", dict[bytes, bytes]().__getitem__)
    assert refused.value.rule == "kind-known"


def test_every_class_of_the_union_has_a_literal_kind_of_its_own() -> None:
    assert set(CLASS_OF_KIND.values()) == set(values.KNOWN_CLASSES)
    assert len(CLASS_OF_KIND) == len(values.KNOWN_CLASSES)
    for kind, cls in CLASS_OF_KIND.items():
        noun, _, phase = kind.partition("/")
        assert noun.isidentifier(), kind
        assert phase.isidentifier(), kind
        assert get_args(get_type_hints(cls)["kind"]) == (Literal[kind],), "a literal, not derived from the class's name"
