r"""Canonical JSON: the one form in which values enter the log.

Insertion order, no spaces, UTF-8; NUL and lone surrogates as `\u` escapes. Whatever JSON cannot
carry without loss is refused by path, before any effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from attrs import evolve

from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.errors import BadPayload

MAX_DEPTH: Final = 200
INT64: Final = range(-(2**63), 2**63)

Json = Any
"""A JSON value: None, bool, int (64 bit), float (finite), str, list or dict with string keys."""

_LONG_NUMBER = re.compile(r"[:\[,]-?\d{19}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_UNFAITHFUL = re.compile("[\0\ud800-\udfff]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))


def _encoding() -> Callable[[Json], str]:
    """What encodes. `JSONEncoder.encode` makes an encoder in C for each value, at twice the price of using it."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _ENCODER.encode
    chunks = make(None, _ENCODER.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_ENCODE = _encoding()


def dumps(value: Json) -> str:
    """`value` as canonical JSON text. Raises `BadPayload` naming the path of what cannot be kept."""
    _check(value, "$", 0)
    return _escaped(_ENCODE(value))


def sameness(value: Json) -> str:
    """The same text for values that JSON takes for the same, however they were written: keys sorted, 1.0 as 1."""
    return json.dumps(without_points(value), sort_keys=True)


def without_points(value: Json) -> Json:
    """`value` with each number that is whole as an integer: JSON makes no difference between 1 and 1.0."""
    match value:
        case dict():
            return {name: without_points(item) for name, item in value.items()}
        case list():
            return [without_points(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def dumps_typed(value: Json) -> str:
    """Like `dumps`, for values built from typed fields: string keys, strings and numbers only.

    Looks closer only where the text hints at a number out of range: an append calls this.
    """
    try:
        text = _ENCODE(value)
    except (TypeError, ValueError, RecursionError):
        return dumps(value)
    if _LONG_NUMBER.search(text) or (not text.isascii() and _SPLIT_PAIR.search(text)):
        return dumps(value)
    return _escaped(text)


def dumps_words(value: Json) -> str:
    """Like `dumps_typed`, for what is in the log or may enter it: nothing in it is looked at again.

    To look for long numbers in much text takes longer than all the rest.
    """
    return _escaped(_ENCODE(value))


def _escaped(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def loads(text: str) -> Json:
    """Parse foreign JSON strictly: no duplicate keys, NaN, over-long integers or deep nesting."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise BadPayload("$", f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise BadPayload("$", str(error)) from None
    _check(value, "$", 0)
    return value


def is_faithful(text: str) -> bool:
    """True when a SQLite text column keeps `text` exactly (no NUL, no lone surrogate)."""
    return ("\0" not in text) if text.isascii() else _UNFAITHFUL.search(text) is None


def displayed(text: str) -> str:
    """`text` for a SQLite text column, with U+FFFD for what the column cannot keep."""
    return text if is_faithful(text) else _UNFAITHFUL.sub("\ufffd", text)


def paired(text: str) -> str:
    """`text` as a plain `str`; a surrogate pair that stands as two characters, as a stream cuts it, is made one.

    A class of a plugin's own may answer anything when it is asked, so it is the plain one that is asked.
    """
    text = str.__str__(text)
    if text.isascii():
        return text
    return _SPLIT_PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def whole(block: Block) -> Block:
    """`block` with all its words `paired`."""
    match block:
        case TextBlock(text=text):
            words = paired(text)
            return block if words is text else evolve(block, text=words)
        case ThinkingBlock(text=text, replay=replay):
            return evolve(block, text=paired(text), replay=paired(replay))
        case ToolCallBlock(call_id=call_id, name=name, arguments=arguments):
            return evolve(block, call_id=paired(call_id), name=paired(name), arguments=paired(arguments))
        case FileBlock(name=name, media_type=media_type):
            return evolve(block, name=paired(name), media_type=paired(media_type))


def _check(value: Json, path: str, depth: int) -> None:
    # The exact type decides: a subclass (an enum, a numpy float, a namedtuple) would not come back.
    kind = type(value)
    if kind is bool or value is None:
        return
    if kind is str:
        if not value.isascii() and _SPLIT_PAIR.search(value):
            raise BadPayload(path, "a surrogate pair stands as two characters, JSON would make it one")
        return
    if kind is int:
        if value not in INT64:
            raise BadPayload(path, "integer does not fit into 64 bits")
        return
    if kind is float:
        if not isfinite(value):
            raise BadPayload(path, f"{value} is not a JSON number")
        return
    if depth >= MAX_DEPTH:
        raise BadPayload(path[:200], f"nested deeper than {MAX_DEPTH} (or a cycle)")
    if kind is list:
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise BadPayload(path, f"a key is of type {type(key).__name__}, not a string")
            _check(key, path, depth)
            _check(item, f"{path}.{key}", depth + 1)
    else:
        raise BadPayload(path, f"{kind.__name__} is not a JSON value")


def plain(value: object, depth: int = 0) -> Json:
    """`value` with tuples and mappings turned into lists and dicts, words `paired`: for what an author hands in.

    Raises `BadPayload` for what is nested too deep, as a cycle is.
    """
    if depth > MAX_DEPTH:
        raise BadPayload("$", f"nested deeper than {MAX_DEPTH} (or a cycle)")
    if isinstance(value, Mapping):
        return {paired(key) if type(key) is str else key: plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    # An enum member, a numpy number: the value is meant. A bool is an int, and stays what it is.
    if isinstance(value, str):
        return paired(value)
    for base in (int, float):
        if isinstance(value, base) and type(value) not in (base, bool):
            return base(value)
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice!r}")
    return value


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")
