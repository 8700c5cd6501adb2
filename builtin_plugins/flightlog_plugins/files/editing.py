"""What an edit makes of a file: pure.

An edit can be repeated safely because its own result always shows that it was made: every place where `old` still
stands lies within `new`. An edit whose result would not show it is refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from flightlog_hookspecs.errors import ToolError

PLACES_MAX: Final = 1_000_000
"""Places of `old` that are looked at within places of `new`."""
COMPARED_MAX_BYTES: Final = 100_000_000
"""What stands at all places of one text, where they overlap counted each time."""


def edited(content: bytes, old: bytes, new: bytes) -> bytes | None:
    """`content` with `new` in place of `old`; None when that was done before. Raises `ToolError` when it cannot be."""
    if not old or old == new:
        raise ToolError("old must not be empty, and new must differ from it")
    if is_made(content, old, new):
        return None
    count = len(tuple(islice(_places(content, old), 2)))
    if count == 0:
        hint = "; its lines end with \\r\\n" if b"\r\n" in content and b"\n" in old.replace(b"\r\n", b"") else ""
        raise ToolError(f"old does not stand in it{hint}: read the file, and give the text exactly")
    if count > 1:
        raise ToolError("old stands in it more than once: give more of the text around it, so that it is one place")
    result = content.replace(old, new)
    if not is_made(result, old, new):
        raise ToolError("the result would contain old again next to new: give more of the text around it in both")
    return result


def is_made(content: bytes, old: bytes, new: bytes) -> bool:
    """Whether the edit shows as made: `new` stands in `content`, and `old` nowhere but within it.

    Raises `ToolError` when they stand there too often to tell.
    """
    if old not in content:
        return new in content
    if old not in new:
        return False
    inside = tuple(_places(new, old))
    places = tuple(_places(content, new))
    if len(places) * len(inside) > PLACES_MAX:
        raise _too_often()
    covered = {place + offset for place in places for offset in inside}
    return all(place in covered for place in _places(content, old))


def _places(content: bytes, part: bytes) -> Iterator[int]:
    """Where `part` stands in `content`, overlapping ones included. Raises `ToolError` when there are too many."""
    left = min(PLACES_MAX, COMPARED_MAX_BYTES // len(part) + 1)
    at = content.find(part)
    while at >= 0:
        if not left:
            raise _too_often()
        left -= 1
        yield at
        at = content.find(part, at + 1)


def _too_often() -> ToolError:
    return ToolError("old stands too often in new, or new in it: give more of the text around it in both")
