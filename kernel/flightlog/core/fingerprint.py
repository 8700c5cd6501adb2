"""What a task's work is based on, and the fingerprint by which a later owner knows it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Final

from attrs import frozen

from flightlog.core.canonical import loads
from flightlog_hookspecs.errors import BadPayload
from flightlog_hookspecs.events import ToolSpec

DIGITS: Final = 16
"""Hex digits of a sha256 that tell two texts apart where no attacker chooses them."""


@frozen(kw_only=True)
class Basis:
    """The system text as the model has it, the goal, the tools it is shown, and the model that serves.

    `parameters` are the task's, in JSON. Before the first head there is neither text nor tools nor model.
    """

    goal: str
    parameters: str = "{}"
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    model: str = ""

    @property
    def parts(self) -> Mapping[str, str]:
        """The digests of its parts, by name; they do not depend on the order that keys were written in."""
        return {
            "goal": digest(self.goal),
            "parameters": digest(_sorted(self.parameters)),
            "system": digest(self.system),
            "tools": _tools(self.tools),
            "model": digest(self.model),
        }

    @property
    def fingerprint(self) -> str:
        """The first hex digits of the sha256 of all of it."""
        return _fingerprint(self)

    def changes(self, other: Basis) -> tuple[str, ...]:
        """The names of the parts that are not the same in `other`."""
        theirs = other.parts
        return tuple(name for name, mine in self.parts.items() if mine != theirs[name])


@lru_cache(maxsize=64)
def _fingerprint(basis: Basis) -> str:
    return digest(json.dumps(basis.parts))[:DIGITS]


@lru_cache(maxsize=64)
def digest(text: str) -> str:
    """The sha256 of `text`, in hex. Looked up where it was asked for lately: heads stay the same for long."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=64)
def _sorted(text: str) -> str:
    try:
        return json.dumps(loads(text), sort_keys=True)
    except BadPayload:
        return text


@lru_cache(maxsize=16)
def _tools(tools: tuple[ToolSpec, ...]) -> str:
    return digest(json.dumps([(tool.name, tool.description, _sorted(tool.parameters)) for tool in tools]))
