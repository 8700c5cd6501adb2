"""What a text is found by: its words and, where a language writes no spaces between them, each pair of neighbours.

A memory about 数据库 is found by 数据, which an index of three characters at a time would miss, and one about
deployments by "deploy". Letters of either case, of any width and with any accents are the same. Signs that make
another syllable of a letter, as in Hindi or Thai, are part of the word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import chain, groupby, pairwise
from typing import Final

QUERY_MAX_CHARS: Final = 4000
QUERY_TERMS_MAX: Final = 64
"""Of a longer query its beginning counts."""
PREFIX_MIN_CHARS: Final = 3
"""A shorter word stands for itself only, not for those that begin with it."""

_UNSPACED: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # 々 and its like
    (0x3040, 0x30FF),  # Japanese syllables
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Burmese
    (0xAA60, 0xAA7F),
    (0xAC00, 0xD7A3),  # Korean, whose words carry their endings
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_LETTERS: Final = ((0x0E00, 0x109F), (0x1780, 0x17FF), (0xA9E0, 0xAA7F))
"""Those of them that write sounds: two neighbours alone say little there."""

_ACCENTS: Final = (range(10, 36), range(200, 241))
"""Combining classes of marks that may be left out in writing: vowels of Hebrew and Arabic, accents of all letters."""

_DOTLESS: Final = "\u0131"
"""The Turkish i, which is no i without its capital."""

_COMMON: Final = """
a about after all also am an and any are as at be because been but by can could did do does for from get had has have
he her him his how i if in into is it its just let like make may me more my need no not now of on one or our out please
she should so some tell than that the their them then there these they this to up us use want was we were what when
where which who why will with would you your
一下 一个 一些 一样 不是 为了 什么 他们 你们 你好 使用 但是 关于 其他 可以 可能 因为 好的
如何 如果 它们 怎么 怎样 我们 所以 或者 现在 的是 知道 请问 这个 这些 这样 这里 那个 那些 那么 都是 需要 告诉 帮我
です ます した する
"""
COMMON: Final = frozenset(_COMMON.split())
"""Words and pairs that say nothing about what is meant."""


def indexed(text: str) -> str:
    """The terms of `text` as they go into the index, with spaces between them."""
    return " ".join(
        chain.from_iterable((*_pairs(run), run[-1]) if unspaced else (run,) for unspaced, run in _runs(text))
    )


def query(text: str) -> str:
    """What finds memories that share a term with `text`, as FTS5 puts it; "" when it has no terms.

    Common ones count only where there are no others.
    """
    wanted = dict.fromkeys(_wanted(text[:QUERY_MAX_CHARS]))
    telling = [term for term in wanted if term.strip('"*') not in COMMON] or list(wanted)
    return " OR ".join(telling[:QUERY_TERMS_MAX])


def _wanted(text: str) -> Iterator[str]:
    for unspaced, run in _runs(text):
        if not unspaced:
            yield f'"{run}"*' if len(run) >= PREFIX_MIN_CHARS else f'"{run}"'
        elif len(run) == 1:  # it begins a pair, or stands at the end
            yield f'"{run}"*'
        elif len(run) > 2 and all(_among(char, _LETTERS) for char in run):
            # Of three neighbours both pairs, one behind the other.
            yield from (f'"{first} {second}"' for first, second in pairwise(_pairs(run)))
        else:
            yield from (f'"{pair}"' for pair in _pairs(run))


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    """The runs of characters without spaces between words (True), and the words of all other writing."""
    for kind, run in groupby(_plain(text), _kind):
        if kind:
            yield kind == "unspaced", "".join(run)


def _plain(text: str) -> str:
    """`text` without what two ways to write the same word differ in."""
    taken_apart = unicodedata.normalize("NFKD", text.casefold().replace(_DOTLESS, "i")).casefold()
    return unicodedata.normalize("NFKC", "".join(char for char in taken_apart if not _left_out(char)))


@cache
def _left_out(char: str) -> bool:
    """Whether `char` may be there or not: an accent, or one of those that nobody sees."""
    if unicodedata.category(char) == "Cf" or unicodedata.name(char, "").startswith("VARIATION SELECTOR"):
        return True
    return any(unicodedata.combining(char) in accents for accents in _ACCENTS)


@cache
def _kind(char: str) -> str:
    """What `char` is part of: "unspaced", "word" or "", which is nothing."""
    if not (char.isalnum() or unicodedata.category(char).startswith("M")):
        return ""
    return "unspaced" if _among(char, _UNSPACED) else "word"


def _among(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= ord(char) <= last for first, last in ranges)


def _pairs(run: str) -> Iterator[str]:
    return map("".join, pairwise(run))
