"""Stand-ins for names and ids that a provider refuses, of which nothing but what they stand for decides.

A model may call a tool by any name, and what it said goes back with every later request.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

MAX_CHARS: Final = 64
"""Of a name or an id that every provider takes."""

_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS: Final = 8


def tool_name(given: str) -> str:
    """`given`, or what is legal of it and a hash that tells it apart."""
    if _is_plain(given):
        return given
    return f"{_ILLEGAL.sub('_', given)[: MAX_CHARS - _HASH_CHARS - 1]}_{_digest(given)[:_HASH_CHARS]}"


def plain_id(given: str) -> str:
    """`given`, or a stand-in for an id of a call that is not made of letters, digits, "_" and "-"."""
    return given if _is_plain(given) else _id(given)


def short_id(given: str) -> str:
    """`given`, or a stand-in for an id of a call that is too long, empty, or not in ASCII."""
    return given if given.isascii() and 0 < len(given) <= MAX_CHARS else _id(given)


def _is_plain(given: str) -> bool:
    """Whether every provider takes `given` as it is."""
    return 0 < len(given) <= MAX_CHARS and not _ILLEGAL.search(given)


def _id(given: str) -> str:
    return f"call_{_digest(given)[:24]}"


def _digest(given: str) -> str:
    return sha256(given.encode(errors="surrogatepass")).hexdigest()
