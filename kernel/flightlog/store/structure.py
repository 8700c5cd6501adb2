"""Values of the vocabulary as JSON values and back: cattrs with its traps closed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.strategies import configure_tagged_union

from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock

_Hook = Callable[[Any, Any], Any]
"""What cattrs calls to make a value of its JSON: with that, and the type to make."""

SHA256: Final = re.compile("[0-9a-f]{64}")
"""A hash as it is written in JSON."""

_BLOCK_TAGS: Final = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "tool_call", FileBlock: "file"}


@cache
def structure_of(cls: type) -> _Hook:
    """What makes a `cls` of a JSON value; found once, as every row asks for it."""
    return converter().get_structure_hook(cls)


@cache
def unstructure_of(cls: type) -> Callable[[Any], Any]:
    """What makes a JSON value of a `cls`."""
    return converter().get_unstructure_hook(cls)


def strict_converter() -> cattrs.Converter:
    """Another cattrs converter with its traps closed: strict primitives and lists, no unknown fields, tagged blocks.

    Literals, optional values and tuples have hooks of their own, as cattrs looks up what they hold for each value.
    """
    converter = cattrs.Converter(forbid_extra_keys=True, omit_if_default=True, detailed_validation=False)
    for primitive in (str, int, bool):
        converter.register_structure_hook(primitive, _strict(primitive))

    @converter.register_structure_hook_factory(_is_literal)
    def _(cls: Any) -> _Hook:
        return _one_of(frozenset(get_args(cls)))

    @converter.register_structure_hook_factory(_is_tuple)
    def _(cls: Any) -> _Hook:
        item, _ = get_args(cls)
        return _all_of(item, converter.get_structure_hook(item))

    @converter.register_structure_hook_factory(_is_optional)
    def _(cls: Any) -> _Hook:
        (item,) = (choice for choice in get_args(cls) if choice is not NoneType)
        return _maybe(item, converter.get_structure_hook(item))

    for block in (TextBlock, ThinkingBlock, ToolCallBlock):
        converter.register_structure_hook(block, make_dict_structure_fn(block, converter))
    without = override(omit=True)
    converter.register_unstructure_hook(
        FileBlock, make_dict_unstructure_fn(FileBlock, converter, data=without, _cattrs_omit_if_default=True)
    )
    file_from = make_dict_structure_fn(FileBlock, converter, data=without)
    converter.register_structure_hook(FileBlock, lambda value, cls: _named(file_from(value, cls)))
    configure_tagged_union(Block, converter, tag_name="type", tag_generator=_BLOCK_TAGS.__getitem__)
    of_tag = {tag: converter.get_structure_hook(block) for block, tag in _BLOCK_TAGS.items()}
    converter.register_structure_hook(Block, lambda value, cls: of_tag[value.pop("type")](value, cls))
    return converter


converter: Final = cache(strict_converter)
"""The one of this process."""


def _named(file: FileBlock) -> FileBlock:
    if not SHA256.fullmatch(file.sha256):
        raise ValueError(f"{file.sha256!r} is not the sha256 of a file")
    return file


def _is_literal(cls: Any) -> bool:
    return get_origin(cls) is Literal


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple and get_args(cls)[1:] == (...,)


def _is_optional(cls: Any) -> bool:
    return isinstance(cls, UnionType) and NoneType in get_args(cls) and len(get_args(cls)) == 2


def _strict(primitive: type) -> _Hook:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not primitive:
            raise TypeError(f"expected {primitive.__name__}, found {type(value).__name__}")
        return value

    return structure


def _one_of(values: frozenset[str]) -> _Hook:
    def structure(value: Any, _: Any) -> Any:
        if value not in values:
            raise ValueError(f"{value!r} is none of {', '.join(sorted(values))}")
        return value

    return structure


def _maybe(cls: Any, hook: _Hook) -> _Hook:
    def structure(value: Any, _: Any) -> Any:
        return None if value is None else hook(value, cls)

    return structure


def _all_of(cls: Any, hook: _Hook) -> _Hook:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"expected list, found {type(value).__name__}")
        return tuple([hook(item, cls) for item in value])

    return structure
