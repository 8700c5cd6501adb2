"""What a text is found by: its words and, where a language writes no spaces between them, each pair of neighbours.

A memory about 数据库 is found by 数据, which an index of three characters at a time would miss, and one about
deployments by "deploy". Letters of either case, of any width and with any accents are the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Final

QUERY_MAX_CHARS: Final = 4000
QUERY_TERMS_MAX: Final = 64
"""Of a longer query its beginning counts."""
PREFIX_MIN_CHARS: Final = 3
"""A shorter word stands for itself only, not for those that begin with it."""

_RUN: Final = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+)"  # no spaces
    r"|([^\W_]+)"  # words
)

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
    """The terms of `text` as they go into the index."""
    return " ".join(chain.from_iterable([*_pairs(run), run[-1]] if run else [word] for run, word in _runs(text)))


def query(text: str) -> str:
    """What finds memories that share a term with `text`, as FTS5 puts it; "" when it has no terms.

    Common ones count only where there are no others.
    """
    wanted = dict.fromkeys(_wanted(text[:QUERY_MAX_CHARS]))
    telling = [term for term in wanted if term.strip('"*') not in COMMON] or list(wanted)
    return " OR ".join(telling[:QUERY_TERMS_MAX])


def _wanted(text: str) -> Iterator[str]:
    for run, word in _runs(text):
        if len(run) > 1:
            yield from (f'"{pair}"' for pair in _pairs(run))
        elif run:  # it begins a pair, or stands at the end
            yield f'"{run}"*'
        else:
            yield f'"{word}"*' if len(word) >= PREFIX_MIN_CHARS else f'"{word}"'


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """The runs of characters without spaces between words, and the words of all other writing: one of the two."""
    return (found.groups(default="") for found in _RUN.finditer(unicodedata.normalize("NFKC", text).casefold()))  # type: ignore[misc]


def _pairs(run: str) -> Iterator[str]:
    return map("".join, pairwise(run))
