"""Which call a piece of one belongs to, in the many ways that servers have of not saying it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from attrs import define, field, frozen

from flightlog_plugins.wire.json_text import object_or_none


@frozen
class Piece:
    """A piece of a call, the `position`-th in its chunk. What the server leaves out is None or ""."""

    position: int
    index: int | None
    call_id: str
    name: str
    text: str

    @property
    def place(self) -> int:
        """Where its call is looked for when it has no id."""
        return self.position if self.index is None else self.index


def piece_of(position: int, fragment: dict[str, Any]) -> Piece:
    """`fragment`, read."""
    index, function = fragment.get("index"), fragment.get("function") or {}
    return Piece(
        position=position,
        index=index if isinstance(index, int) else None,
        call_id=fragment.get("id") or "",
        name=function.get("name") or "",
        text=function.get("arguments") or "",
    )


@define
class Call:
    """A call that is being streamed, as block `index`.

    `given_id` is what the server calls it, and `call_id` what it will be called, which differs where that is taken;
    "" is not yet known.
    """

    index: int
    given_id: str = ""
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(factory=list)

    @property
    def arguments(self) -> str:
        """The text of its arguments so far."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are an object, behind which nothing more can come."""
        # This may be asked at each piece, so only what ends like an object is parsed.
        last = next((text for text in reversed(self.pieces) if text.strip()), "")
        return last.rstrip().endswith("}") and object_or_none(self.arguments) is not None

    def is_over(self, piece: Piece) -> bool:
        """Whether `piece` is of a later call, though it has the id or the place of this one."""
        if piece.call_id and self.given_id and piece.call_id != self.given_id:
            return True
        if not piece.name or not self.name:
            return False
        if piece.call_id and piece.call_id == self.given_id:
            # Who says the id with each piece may say the name with each piece.
            return self.is_whole and (bool(piece.text.strip()) or piece.name != self.name)
        return self.is_whole or piece.name != self.name


@define
class Calls:
    """The calls of one answer, in the order in which they began. None of them gets an id that is `taken`."""

    taken: set[str]
    _calls: list[Call] = field(factory=list, init=False)
    _by_id: dict[str, Call] = field(factory=dict, init=False)
    _by_place: dict[int, Call] = field(factory=dict, init=False)
    _last: Call | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def continued(self, piece: Piece) -> Call | None:
        """The call that `piece` is more of, None when it begins one."""
        call = self._by_id.get(piece.call_id) or self._in_place(piece)
        if call is None or call.is_over(piece):
            return None
        has_new_index = piece.index is not None and piece.index not in self._by_place
        return None if has_new_index and piece.name else call

    def _in_place(self, piece: Piece) -> Call | None:
        call = self._by_place.get(piece.place)
        if piece.index is None and not piece.name and call is not self._last and (call is None or call.is_whole):
            # A chunk with the end of one call and the beginning of the next has moved it to another position.
            return self._last
        return call

    def begin(self, index: int) -> Call:
        """A new call, as block `index`."""
        call = Call(index)
        self._calls.append(call)
        return call

    def add(self, call: Call, piece: Piece) -> None:
        """Add `piece` to `call`, which is then what pieces without an id go on with."""
        self._last = self._by_place[piece.place] = call
        if piece.call_id and not call.given_id:
            call.given_id = piece.call_id
            self._by_id[piece.call_id] = call
            if piece.call_id not in self.taken:
                self._name(call, piece.call_id)
        call.name = call.name or piece.name
        if piece.text:
            call.pieces.append(piece.text)

    def make_ids(self, stem: str) -> None:
        """Make ids that begin with `stem` for calls without one of their own: other providers may insist on them."""
        for call in self._calls:
            if not call.call_id:
                made = (f"{stem}_{number}" for number in count(call.index))
                self._name(call, next(call_id for call_id in made if call_id not in self.taken))

    def _name(self, call: Call, call_id: str) -> None:
        call.call_id = call_id
        self.taken.add(call_id)
