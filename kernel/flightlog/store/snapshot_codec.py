"""Snapshots as rows and back: canonical JSON, as strict as the codec of events, and a checksum over all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import cattrs
from attrs import Attribute, Factory, fields, has
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from flightlog.core.canonical import dumps_typed
from flightlog.core.history import Outline
from flightlog.core.snapshot import FORMAT, Snapshot, shape
from flightlog.store.rows import SnapshotRow
from flightlog.store.structure import strict_converter
from flightlog.version import __version__

_FOLDING: Final = ("flightlog.core", "flightlog_hookspecs")
"""The packages whose code says what rows come to."""

V = TypeVar("V")
_Write = Callable[[Any], Any]
_Read = Callable[[Any, Any], Any]


def written(snapshot: Snapshot, key: int, uid: str, seq: int, digest: bytes, link: bytes) -> SnapshotRow:
    """`snapshot` of row `seq`, whose digest is `digest`, as a row. Raises `BadPayload`.

    `link` is that of all items which came into its sets.
    """
    row = SnapshotRow(key, version(), seq, digest, text_of(snapshot), b"")
    return row._replace(checksum=checksum(row, uid, link))


def linked(link: bytes, items: str) -> bytes:
    """The digest of these items and those before, which have `link`; b"" is none."""
    return sha256(link + items.encode()).digest()


def checksum(row: SnapshotRow, uid: str, link: bytes) -> bytes:
    """The checksum of `row` but for its own, for a session with that uid and the items with that link."""
    stated = f"{row.session};{row.version};{uid};{row.seq};{row.digest.hex()};{link.hex()};{row.data}"
    return sha256(stated.encode()).digest()


def text_of(value: object) -> str:
    """A value that can stand in a snapshot, as canonical JSON. Raises `BadPayload`."""
    return dumps_typed(_converter().unstructure(value))


def value_of(text: str, cls: type[V]) -> V:
    """The `cls` that was written so. Raises whatever json and cattrs raise."""
    value: V = _converter().structure(json.loads(text), cls)
    return value


@cache
def version() -> str:
    """The code that folds, by a name: what other code wrote down may not be what this one comes to.

    Its sources say it all, so nobody has to think of it. Where they are not at hand, its classes have to do.
    """
    sources = [
        path.read_bytes()
        for package in _FOLDING
        for path in sorted(files(package).iterdir(), key=lambda path: path.name)
        if path.name.endswith(".py")
    ]
    told = b"".join(sources) or shape().encode()
    return f"{__version__} {FORMAT} {sha256(told).hexdigest()}"


@cache
def _converter() -> cattrs.Converter:
    """The codec's, taught the collections that only a state has. Each comes back as it was.

    It makes no code for classes, as the codec does: that pays for what is in every row, and a snapshot has one of each.
    """
    converter = strict_converter()
    converter.register_unstructure_hook_factory(_is_class, partial(_write_fields, converter))
    converter.register_structure_hook_factory(_is_class, partial(_read_fields, converter))
    for kind, write, read_back in (
        (frozenset, _write_frozenset, _read_frozenset),
        (Mapping, _write_mapping, _read_mapping),
        (MappingProxyType, _write_mapping, _read_mapping),
        (tuple, _write_pair, _read_pair),
    ):
        converter.register_unstructure_hook_factory(partial(_is_a, kind), partial(write, converter))
        converter.register_structure_hook_factory(partial(_is_a, kind), partial(read_back, converter))
    rows = override(unstruct_hook=_gaps, struct_hook=lambda gaps, _: tuple(_summed(gaps)))
    converter.register_unstructure_hook(
        Outline, make_dict_unstructure_fn(Outline, converter, rows=rows, numbers=rows, _cattrs_omit_if_default=True)
    )
    converter.register_structure_hook(
        Outline, make_dict_structure_fn(Outline, converter, rows=rows, numbers=rows, _cattrs_forbid_extra_keys=True)
    )
    return converter


def _is_class(hint: object) -> bool:
    return isinstance(hint, type) and has(hint)


def _write_fields(converter: cattrs.Converter, cls: Any) -> _Write:
    """What differs from the defaults. How a field is written is found when there is one to write."""
    hints, defaults = get_type_hints(cls), {field.name: _default(field) for field in fields(cls)}
    return lambda value: {
        name: converter.get_unstructure_hook(hints[name])(item)
        for name, default in defaults.items()
        if (item := getattr(value, name)) != default
    }


def _read_fields(converter: cattrs.Converter, cls: Any) -> _Read:
    hints = get_type_hints(cls)
    return lambda items, _: cls(
        **{name: converter.get_structure_hook(hints[name])(item, hints[name]) for name, item in items.items()}
    )


def _default(field: Attribute[Any]) -> object:
    default: Any = field.default
    return default.factory() if isinstance(default, Factory) else default  # type: ignore[arg-type]


def _is_a(kind: type, hint: object) -> bool:
    """Whether `hint` is a `kind` of something: a tuple that has always as many items, if it is one."""
    return get_origin(hint) is kind and ... not in get_args(hint)


def _write_frozenset(_: cattrs.Converter, hint: object) -> _Write:
    return (lambda items: _gaps(sorted(items))) if get_args(hint) == (int,) else sorted


def _read_frozenset(_: cattrs.Converter, hint: object) -> _Read:
    if get_args(hint) == (int,):
        return lambda gaps, _: frozenset(_summed(gaps))
    return lambda items, _: frozenset(_all(str, items))


def _write_mapping(converter: cattrs.Converter, hint: object) -> _Write:
    """As pairs, which keep their order, and keys that are no strings."""
    key, value = map(converter.get_unstructure_hook, get_args(hint))
    return lambda mapping: [[key(each), value(of)] for each, of in mapping.items()]


def _read_mapping(converter: cattrs.Converter, hint: object) -> _Read:
    key, value = get_args(hint)
    read_key, read_value = map(converter.get_structure_hook, (key, value))
    return lambda pairs, _: MappingProxyType({read_key(each, key): read_value(of, value) for each, of in pairs})


def _write_pair(converter: cattrs.Converter, hint: object) -> _Write:
    writes = [converter.get_unstructure_hook(item) for item in get_args(hint)]
    return lambda values: [write(value) for write, value in zip(writes, values, strict=True)]


def _read_pair(converter: cattrs.Converter, hint: object) -> _Read:
    items = get_args(hint)
    reads = [converter.get_structure_hook(item) for item in items]
    return lambda values, _: tuple([read(*each) for read, *each in zip(reads, values, items, strict=True)])


def _gaps(numbers: Iterable[int]) -> list[int]:
    """Each number less the one before: most are next to each other, and all of them are a large part of a snapshot."""
    return [after - before for before, after in pairwise(chain((0,), numbers))]


def _summed(gaps: list[int]) -> Iterable[int]:
    return accumulate(_all(int, gaps))


def _all(kind: type[V], items: list[V]) -> list[V]:
    if type(items) is not list or not set(map(type, items)) <= {kind}:
        raise TypeError(f"expected a list of {kind.__name__}")
    return items
