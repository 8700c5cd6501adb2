"""A call's end as it stands in its done row, in the database of its tool: all that its result in the log needs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256

from attrs import frozen

from flightlog.core import canonical
from flightlog.core.files import filled
from flightlog.store.codec import Undecodable, file_blobs, structured_value, unstructured_value
from flightlog.store.store import Blob
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.events import Spill
from flightlog_hookspecs.tools import Fact, Outcome


@frozen(kw_only=True)
class DoneResult:
    """What is shown, where the whole of it is kept when that is more, and what it notes."""

    outcome: Outcome
    content: tuple[Block, ...]
    spill: Spill | None = None
    facts: tuple[Fact, ...] = ()


@frozen(kw_only=True)
class _Kept:
    result: DoneResult
    payloads: tuple[str, ...] = ()


def encode_done(result: DoneResult, spilled: Blob | None) -> str:
    """`result` with the bytes it refers to, as canonical JSON. Raises `BadPayload`."""
    payloads = [raw for _, raw in (*([spilled] if spilled else ()), *file_blobs(result))]
    kept = _Kept(result=result, payloads=tuple(b64encode(raw).decode() for raw in payloads))
    return canonical.dumps_typed(unstructured_value(kept))


def decode_done(text: str) -> tuple[DoneResult, Blob | None]:
    """What `encode_done` made `text` of. Raises `Undecodable` for anything else."""
    kept = structured_value(text, _Kept)
    try:
        payloads = {sha256(raw).hexdigest(): raw for raw in map(_bytes, kept.payloads)}
        spill = kept.result.spill
        spilled = (bytes.fromhex(spill.sha256), payloads[spill.sha256]) if spill else None
        return filled(kept.result, payloads), spilled
    except (KeyError, ValueError) as error:
        raise Undecodable("done-payloads", f"a payload of the result is missing or damaged ({error})") from error


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
