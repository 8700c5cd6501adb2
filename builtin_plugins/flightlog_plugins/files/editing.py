"""What an edit makes of a file: pure.

An edit can be repeated safely because its own result always shows that it was made: every place where `old` still
stands lies within `new`. An edit whose result would not show it is refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from flightlog_hookspecs.errors import ToolError


def edited(content: bytes, old: bytes, new: bytes) -> bytes | None:
    """`content` with `new` in place of `old`; None when that was done before. Raises `ToolError` when it cannot be."""
    if not old or old == new:
        raise ToolError("old must not be empty, and new must differ from it")
    if is_made(content, old, new):
        return None
    count = sum(1 for _ in _places(content, old))
    if count == 0:
        hint = "; its lines end with \\r\\n" if b"\r\n" in content and b"\n" in old.replace(b"\r\n", b"") else ""
        raise ToolError(f"old does not stand in it{hint}: read the file, and give the text exactly")
    if count > 1:
        raise ToolError(f"old stands in it {count} times: give more of the text around it, so that it is one place")
    result = content.replace(old, new)
    if not is_made(result, old, new):
        raise ToolError("the result would contain old again next to new: give more of the text around it in both")
    return result


def is_made(content: bytes, old: bytes, new: bytes) -> bool:
    """Whether the edit shows as made: `new` stands in `content`, and `old` nowhere but within it."""
    if old not in content:
        return new in content
    if old not in new:
        return False
    inside = tuple(_places(new, old))
    covered = {place + offset for place in _places(content, new) for offset in inside}
    return all(place in covered for place in _places(content, old))


def _places(content: bytes, part: bytes) -> Iterator[int]:
    """Where `part` stands in `content`, overlapping ones included."""
    at = content.find(part)
    while at >= 0:
        yield at
        at = content.find(part, at + 1)
