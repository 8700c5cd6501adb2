"""Calls whose outcome nobody knows, and the same call again: it may repeat what has already happened.

So a person decides about it. What is in doubt follows from the results in the log, and stays in doubt until
such a call was allowed and ended well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flightlog.core.canonical import Json, loads, sameness
from flightlog_hookspecs.errors import BadPayload
from flightlog_hookspecs.tools import Outcome

Signature = tuple[str, str]
"""A tool's name and the arguments of a call, in a form that does not depend on how they were written."""

NO_DOUBTS: Final[Mapping[Signature, int]] = MappingProxyType({})
GUARD: Final = "in doubt"
"""Who asks about a call that may be a repetition, when no guard does."""


def signature(name: str, arguments: str) -> Signature:
    """What makes two calls the same; `arguments` is raw JSON text."""
    try:
        return name, sameness(loads(arguments))
    except BadPayload:
        return name, arguments


def repeated(doubts: Mapping[Signature, int], name: str, arguments: str, defaults: Mapping[str, Json]) -> int | None:
    """The row that left a call in doubt which this one would repeat, None for none.

    An argument that is left out is the one of its name in `defaults`.
    """
    wanted = _filled(arguments, defaults)
    rows = [row for (other, its), row in doubts.items() if other == name and _filled(its, defaults) == wanted]
    return max(rows, default=None)


def _filled(arguments: str, defaults: Mapping[str, Json]) -> str:
    try:
        given = loads(arguments)
    except BadPayload:
        return arguments
    return sameness({**defaults, **given} if isinstance(given, dict) else given)


def after_result(
    doubts: Mapping[Signature, int], call: Signature, outcome: Outcome, seq: int
) -> Mapping[Signature, int]:
    """The `doubts`, each with the row of its last result, once `call` ended with `outcome` in row `seq`."""
    if outcome == "unknown":
        return MappingProxyType({**doubts, call: seq})
    if outcome == "ok" and call in doubts:
        return MappingProxyType({other: row for other, row in doubts.items() if other != call})
    return doubts


def question(name: str, seq: int) -> str:
    """What a person is asked about a call of the tool `name` that is in doubt because of row `seq`."""
    return (
        f"{name} was called before with the same arguments, and its outcome is unknown (row {seq}): "
        "it may have taken effect. Run it again?"
    )


def outcome_question(name: str) -> str:
    """What a person is asked about a call of the tool `name` that was cut off."""
    return f"{name} was cut off while it ran, and nobody knows whether it has taken effect. Has it?"


def done(by: str, reason: str) -> str:
    """What the model is told of a call that was cut off, and that has taken effect as a person says."""
    why = f" {reason}" if reason else ""
    return f"This call was cut off while it ran. It has taken effect, says {by}; what it returned is lost.{why}"


DENIED: Final = (
    "An earlier call with the same arguments has an unknown outcome, so it may have taken effect. "
    "Do not repeat it; find out first what happened."
)
"""What the model is told besides when such a call is denied."""
