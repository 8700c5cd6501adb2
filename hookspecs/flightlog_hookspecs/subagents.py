"""Subagents: child sessions that a model may start as it calls a tool."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Subagent:
    """A kind of child session: the model calls `name` with a task and is given its answer.

    `prompt` is the child's system text, `tools` the names of the tools it may use (None: those of its
    parent), `model` is "adapter:model" or "" for its parent's.
    """

    name: str
    description: str
    prompt: str
    tools: tuple[str, ...] | None = None
    model: str = ""
