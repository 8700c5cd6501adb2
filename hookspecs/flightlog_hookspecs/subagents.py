"""Subagents: child sessions that a model may start as it calls a tool."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Subagent:
    """A kind of child session: the model calls it by name with a task and is given its answer."""

    name: str
    """What the model calls it by; unique in its scope."""
    description: str
    """What it is for, for the model that may call it."""
    prompt: str
    """The child's system text."""
    tools: tuple[str, ...] | None = None
    """The names of the tools that it may use; None for those of its parent."""
    model: str = ""
    """"adapter:model", or "" for its parent's."""
