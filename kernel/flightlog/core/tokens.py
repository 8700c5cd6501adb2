"""About how many tokens a text is, without anybody's tokenizer.

Tokenizers differ by a third between models, and each costs megabytes; what decides whether a request fits needs
neither. So the text is cut the way they all cut it first (words with the space before them, digits by threes, runs of
signs), and each piece costs what pieces of its class cost on average. The weights were fitted to a published tokenizer
over English, Chinese, code and JSON; `benchmarks/token_estimate.py` holds them against it. What a provider counts
beyond that shows in the usage it reports, and corrects the estimate.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Final

_KIND_OF_BYTE: Final = bytes(
    ord(
        "a" if chr(byte).islower() and byte < 0x80
        else "A" if chr(byte).isupper() and byte < 0x80
        else "0" if chr(byte).isdigit() and byte < 0x80
        else " " if byte == 0x20
        else "t" if byte == 0x09
        else "n" if byte in b"\n\r"
        else "." if byte < 0xC0
        else "L" if byte < 0xE0  # two bytes: Latin with accents, Greek, Cyrillic, Hebrew, Arabic
        else "k" if byte == 0xE3  # kana, and the punctuation of Chinese and Japanese
        else "c" if 0xE4 <= byte <= 0xE9  # ideographs
        else "w" if byte < 0xF0  # the other scripts of three bytes
        else "e"  # four bytes: emoji, rare ideographs
    )
    for byte in range(256)
)  # fmt: skip
_CONTINUED: Final = bytes(range(0x80, 0xC0))
_PIECES: Final = re.compile(rb" ?A?a+| ?A+|0{1,3}| ?\.+n*|n+| +|t+|c+|k+|L+|w+|e+")
_FLAT: Final = {"0": 1.2, "n": 0.9, "t": 0.85}
_PER_CHARACTER: Final = {"c": 0.6, "k": 0.78, "L": 0.43, "w": 0.9, "e": 2.0}

PER_CHARACTER_MAX: Final = 3
"""No text is taken for more tokens than so many for each of its characters."""


def estimate(text: str) -> int:
    """The number of tokens `text` is likely to be; 0 only for none. Some tens of microseconds a KiB."""
    shape = text.encode("utf-8", "replace").translate(_KIND_OF_BYTE, _CONTINUED)
    cost = sum(_cost(piece) * times for piece, times in Counter(_PIECES.findall(shape)).items())
    return int(cost) + bool(text)


@lru_cache(maxsize=4096)
def _cost(piece: bytes) -> float:
    """What a piece costs, given by the kinds of its characters."""
    core = piece.strip(b" n") or piece
    kind, length = chr(core[0]), len(core)
    if kind in _PER_CHARACTER:
        return _PER_CHARACTER[kind] * length
    if kind in _FLAT:
        return _FLAT[kind]
    match kind:
        case " ":
            return 0.92 if length > 1 else 0.0  # a single space belongs to what follows
        case ".":
            return 1.04 + 0.15 * (length - 1)
        case _ if core.isupper():
            cost = 1.8
        case _ if piece.startswith(b" "):
            cost = 1.0 + 0.13 * max(0, length - 7)
        case _:
            cost = 0.55 if length <= 2 else 0.91 + 0.06 * max(0, length - 5)
    return cost + 0.3 * max(0, length - 16)  # no word any more
