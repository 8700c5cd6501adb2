"""Letters as rows of the `letters` table and back. Lossless, or refused before they are posted."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple, cast

from flightlog.core import canonical
from flightlog.core.files import files_in
from flightlog.core.letters import BODIES, Body, Letter
from flightlog.core.shape import misfit
from flightlog.store.codec import Undecodable, fetched, structured_value, unstructured_value
from flightlog_hookspecs.errors import BadPayload, LogCorrupt
from flightlog_hookspecs.events import Verb


class LetterRow(NamedTuple):
    """A row of `letters`; `id` is 0 until the file has given it one."""

    id: int
    uid: str
    session: str
    key: str | None
    at: int
    verb: str
    data: str
    digest: bytes


def encode_letter(uid: str, session: str, key: str | None, at_us: int, verb: Verb, body: Body) -> LetterRow:
    """A letter as a row. Raises `BadPayload` for what JSON cannot carry."""
    if wrong := misfit(body):
        raise BadPayload(f"$.{wrong}", f"{verb} cannot hold this {type(getattr(body, wrong)).__name__} there")
    data = canonical.dumps_typed(unstructured_value(body))
    return LetterRow(0, uid, session, key, at_us, verb, data, _digest(uid, session, key, at_us, verb, data))


def decode_letter(row: LetterRow) -> Letter:
    """The letter in `row`. Raises `LogCorrupt` unless it is exactly what was posted."""
    if row.digest != _digest(*row[1:7]) or row.verb not in BODIES:
        raise LogCorrupt(row.session, None, "letter-hash", f"letter {row.uid!r} was changed after it was posted")
    verb = cast("Verb", row.verb)
    try:
        body = structured_value(row.data, BODIES[verb])
    except Undecodable as error:
        raise LogCorrupt(row.session, None, "letter-shape", f"letter {row.uid!r}: {error.detail}") from error
    return Letter(number=row.id, uid=row.uid, key=row.key, verb=verb, body=body, at_us=row.at)


def checked_files(letter: Letter, session: str, blob: Callable[[bytes], bytes]) -> tuple[bytes, ...]:
    """The digests of the files in `letter`. Raises `LogCorrupt` unless `blob` brings each of them."""
    digests = tuple(bytes.fromhex(file.sha256) for file in files_in(letter.body))
    try:
        for digest in digests:
            fetched(blob, digest)
    except Undecodable as error:
        raise LogCorrupt(session, None, error.rule, f"letter {letter.uid!r}: {error.detail}") from error
    return digests


def _digest(uid: str, session: str, key: str | None, at_us: int, verb: str, data: str) -> bytes:
    return sha256(canonical.dumps_typed([uid, session, key, at_us, verb, data]).encode()).digest()
