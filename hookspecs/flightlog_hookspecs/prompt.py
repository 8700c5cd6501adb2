"""Prompt sections: the system text, in pieces."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen(kw_only=True)
class PromptSection:
    """A static piece of the system text: `render()` returns it, "" for nothing this time.

    Sections are joined by blank lines in order of `rank`, then name. They are rendered at the first
    request of a turn; a changed text starts a new head generation there and never earlier.
    """

    name: str
    rank: int
    render: Callable[[], str]
