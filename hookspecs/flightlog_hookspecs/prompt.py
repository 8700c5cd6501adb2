"""Prompt sections: what the model is told besides the conversation, in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import frozen

from flightlog_hookspecs.hooks import StepView

SectionKind = Literal["static", "runtime", "last"]


@frozen(kw_only=True)
class PromptSection:
    """A piece of what the model is told: `render`, sync or async, returns its text, "" for nothing this time.

    A "static" section is part of the system text; it is rendered at the first request of a turn. A
    "runtime" section is rendered at the first request of each step and never part of the system text.
    A "last" one is a runtime section that stands behind all others, and is said again where a head begins: so it
    stands last there, whatever was said before.
    What was sent is never rewritten: a text that differs from the one the model was last given is
    appended as a message with source "context", once; one that is gone is said to be gone, once.

    Sections come in order of `rank`, then name. One that raises, takes longer than `limit_s` seconds or
    returns something else is recorded as `plugin/error`, and keeps the text that the model was given last.
    """

    name: str
    """Unique in its scope; a session's shadows its kernel's."""
    rank: int
    """Sections come in order of rank, then name."""
    render: Callable[[], str | Awaitable[str]] | Callable[[StepView], str | Awaitable[str]]
    """Returns the text, sync or async; "" for nothing this time. It is given the step if it requires an argument."""
    kind: SectionKind = "static"
    """Where it stands: in the system text, or in messages."""
    limit_s: float = 5.0
    """Seconds that `render` may take each time."""
