"""The goal check `answer_matches`: the task's last words are JSON that fits a schema.

The schema stands in the task's parameters, under "output_schema".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from json import dumps, loads

from flightlog_hookspecs import OUTPUT_SCHEMA, GoalCheck, GoalView, Met, Missing, hookimpl
from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.structured_output import JUDGE_MAX_S, StructuredOutput

__all__ = ["answer_matches", "register_goal_checks"]


def answer_matches(view: GoalView) -> Met | Missing:
    """Whether the last words fit. Raises `UsageError` when the task's parameters hold no schema."""
    parameters = view.parameters
    if not isinstance(parameters, dict) or not isinstance(schema := parameters.get(OUTPUT_SCHEMA), dict):
        raise UsageError(f"the parameters of task {view.task!r} must hold a JSON Schema under {OUTPUT_SCHEMA!r}")
    output = _output(dumps(schema))
    if faults := output.faults(view.text):
        return Missing(f"Your answer does not fit: {'; '.join(faults)}.\n\n{output.wanted()}")
    return Met()


@lru_cache(maxsize=64)
def _output(schema: str) -> StructuredOutput:
    return StructuredOutput(loads(schema))


@hookimpl
def register_goal_checks(register: Callable[[GoalCheck], None]) -> None:
    """Offer it."""
    register(GoalCheck(name="answer_matches", body=answer_matches, limit_s=JUDGE_MAX_S))
