"""What stands in the tables: rows of `events`, payloads and texts that belong to them, snapshots."""

from __future__ import annotations

from typing import NamedTuple


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
    cache_write_tokens: int | None
    charged: int | None
    cost_pico: int | None
    currency: str | None
    duration_us: int | None
    due_at: int | None
    text: str | None
    text_blob: bytes | None
    data: str
    digest: bytes


class SnapshotRow(NamedTuple):
    """What the session with that key came to in row `seq`, which has that digest. See `core.snapshot`."""

    session: int
    version: str
    seq: int
    digest: bytes
    data: str
    checksum: bytes


class KeptSnapshot(NamedTuple):
    """What is written of a snapshot: its row, and the `items` that came into the sets of its state.

    They follow those that are in the file, or are all there are, if it `begins` anew.
    """

    row: SnapshotRow
    items: str
    begins: bool


class Encoded(NamedTuple):
    """What one event adds to the tables: its row, large payloads, texts of deltas (at_ms, text).

    And, now and then, a snapshot of its session as it was before.
    """

    row: EventRow
    blobs: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[tuple[int, str], ...]
    snapshot: KeptSnapshot | None = None
