"""Strategies for values of the vocabulary: hostile text, numbers at their bounds, any event of any class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attrs import evolve, fields, has
from hypothesis import strategies as st

from flightlog.core import canonical
from flightlog.core.growing_set import GrowingSet
from flightlog_hookspecs.content import FileBlock
from flightlog_hookspecs.events import Event, Record, UnknownEvent

EVENT_CLASSES: tuple[type, ...] = get_args(Event)
KNOWN_CLASSES = tuple(cls for cls in EVENT_CLASSES if cls is not UnknownEvent)

HOSTILE_TEXTS = (
    *("", " ", "\n", "\0", "a\0b", "\ud800", "x\udfffy", "\udc00\ud800", "\ufffd", "\u2028", "\x7f", "\x1b[31m"),
    *("🎉", "e\u0301", "你好", '"\\/', "{}", '{"$blob":"00"}', "' OR 1=1 --", "\ufeff", "\U0010ffff"),
)
_LARGE_CHARS = 66_000

ints = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1]))
times_us = st.integers(0, 32_503_680_000_000_000)
"""Wall-clock times from 1970 to 3000."""


def texts(*, large: bool = True) -> st.SearchStrategy[str]:
    """Text with whatever Unicode holds, NUL and lone surrogates included; with `large` sometimes over 64 KiB."""
    # Two halves of a surrogate pair side by side are the one thing JSON cannot keep: they become a pair.
    short = st.one_of(st.sampled_from(HOSTILE_TEXTS), st.text(st.characters(), max_size=12).map(canonical.paired))
    long = short.map(lambda piece: f"{piece}{'x' * _LARGE_CHARS}{piece}")
    return st.one_of(*[short] * 11, long) if large else short


def json_values(*, max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Any value that JSON carries without loss."""
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | ints | floats | texts(large=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(large=False), inner, max_size=4),
        max_leaves=max_leaves,
    )


def files() -> st.SearchStrategy[FileBlock]:
    """Files of any name and type, with their bytes."""
    kinds = st.sampled_from(["image/png", "application/pdf", "text/plain", "x/y+z"])
    made = st.builds(FileBlock.of, st.binary(min_size=1, max_size=40), media_type=kinds)
    return st.builds(lambda file, name: evolve(file, name=name), made, texts(large=False))


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the vocabulary uses: a class, a union, a literal, a tuple, a primitive."""
    if hint is FileBlock:
        return files()
    if hint is str:
        return texts()
    if hint is int:
        return ints
    if hint is bool:
        return st.booleans()
    if hint is NoneType:
        return st.none()
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(values_of, get_args(hint)))
    if get_origin(hint) is tuple and ... not in get_args(hint):
        return st.tuples(*map(values_of, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) in (GrowingSet, frozenset):
        (item,) = get_args(hint)
        items = st.frozensets(st.integers(1, 2**40) if item is int else values_of(item), max_size=9)
        return items if get_origin(hint) is frozenset else items.map(growing_set_of)
    if get_origin(hint) in (Mapping, MappingProxyType):
        return st.dictionaries(*map(values_of, get_args(hint)), max_size=3).map(MappingProxyType)
    assert has(hint), f"no strategy for {hint}"
    hints = get_type_hints(hint)
    return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})


def growing_set_of(items: Iterable[Any]) -> GrowingSet[Any]:
    """The set that comes of adding these one by one."""
    grown: GrowingSet[Any] = GrowingSet()
    for item in items:
        grown = grown.with_item(item)
    return grown


def plainest(hint: Any) -> Any:
    """The plainest value of a type that the vocabulary uses: every field set, all of them empty or zero."""
    if hint in (str, bytes, int, bool, NoneType):
        return hint()
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return plainest(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return tuple(plainest(item) for item in get_args(hint) if item is not ...)
    if get_origin(hint) in (GrowingSet, frozenset):
        items = frozenset({plainest(get_args(hint)[0])})
        return items if get_origin(hint) is frozenset else GrowingSet((items,))
    if get_origin(hint) in (Mapping, MappingProxyType):
        return MappingProxyType(dict([tuple(map(plainest, get_args(hint)))]))
    hints = get_type_hints(hint)
    return hint(**{field.name: plainest(hints[field.name]) for field in fields(hint)})


unknown_events = st.builds(
    UnknownEvent,
    kind=st.sampled_from(["test/note", "newer/thing", "пример/событие"]),
    data=st.dictionaries(texts(large=False), json_values(max_leaves=4), max_size=3).map(canonical.dumps),
)
"""Events of kinds that this version does not know, as their own writer would have kept them."""


def events(cls: type) -> st.SearchStrategy[Any]:
    """Any event of class `cls`, legal or not."""
    return unknown_events if cls is UnknownEvent else values_of(cls)


def records(cls: type) -> st.SearchStrategy[Record]:
    """Any event of class `cls` anywhere in a log."""
    numbers = st.integers(0, 2**40)
    return st.builds(
        Record,
        session=st.just("s"),
        seq=st.integers(1, 2**40),
        at_us=times_us,
        turn=st.none() | numbers,
        step=st.none() | numbers,
        epoch=numbers,
        event=events(cls),
        ignorable=st.just(value=True) if cls is UnknownEvent else st.booleans(),
    )
