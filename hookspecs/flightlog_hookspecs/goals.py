"""Goal checks: what alone decides whether a task has reached its goal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from attrs import field, frozen

from flightlog_hookspecs.events import Message


@frozen(kw_only=True)
class GoalView:
    """A task whose model has stopped, as if it were done."""

    task: str
    """The task's id, which is the name of its session."""
    goal: str
    """What is to be reached now."""
    parameters: Any
    """The goal's parameters, from JSON."""
    text: str
    """The model's last words."""
    messages: Sequence[Message] = field(repr=False)
    """The conversation as the model has seen it, its last words included."""
    workspace: str = ""
    """The folder the host lets tools work in, or "" for none."""


@frozen
class Met:
    """The goal is reached: the task is completed."""


@frozen
class Missing:
    """The goal is not reached yet: the model is told what is missing, and goes on."""

    what: str
    """What is missing, for the model and for people."""


Judgement = Met | Missing
"""What a goal check finds."""


@frozen(kw_only=True)
class GoalCheck:
    """What a task may name as its `goal_check`. It is asked whenever the task's model stops, and alone decides.

    It looks and changes nothing: it may be asked again after a crash. One that raises, exceeds its time limit or
    answers something else is recorded as `plugin/error`, and the task is paused: it never counts as reached.
    """

    name: str
    """What tasks call it. Unique in its scope; a session's shadows its kernel's."""
    body: Callable[[GoalView], Judgement | Awaitable[Judgement]]
    """Takes the view, returns `Met` or `Missing`; sync or async. A plain function runs in a thread."""
    limit_s: float = 30.0
    """Seconds it may take each time."""
