"""The tests of the workspace, by a command that the host chooses. Never on by default: the host passes it in.

    TestSuite(command=("python", "-m", "pytest", "-q"))

Running them runs code of the workspace, with all that `flightlog_plugins.shell` says about commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Final

from attrs import field, frozen

from flightlog_hookspecs import (
    Effect,
    GoalCheck,
    GoalView,
    Met,
    Missing,
    Redaction,
    Tool,
    ToolContext,
    ToolOutput,
    hookimpl,
)
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_plugins.secrets import register_values, secrets_among
from flightlog_plugins.shell.running import END_LIMIT_S, Ended, run
from flightlog_plugins.shell.surroundings import scrubbed

__all__ = ["TestSuite"]

SHOWN_MAX: Final = 50
"""Failing tests that are named."""
TAIL_MAX_CHARS: Final = 8000
OUTPUT_MAX_BYTES: Final = 256 * 1024
NAME_MAX_CHARS: Final = 300

_FAILING: Final = re.compile(
    r"(?:FAILED|ERROR) (\S+)"  # pytest
    r"|(?:FAIL|ERROR): (.+)"  # unittest
    r"|\s*--- FAIL: (\S+)"  # go test
    r"|test (\S+) \.\.\. FAILED"  # cargo test
    r"|not ok \d+ -? ?(.+)"  # TAP
)


@frozen(kw_only=True)
class TestSuite:
    """A plugin with one tool, `run_tests`, and the goal check `command`, met when the tests pass.

    Its `command` is run in the workspace; what the model names is added to it.

    `effect` is what running the tests again would do: only the host can know that it is "idempotent".
    Values of `env` whose names look like those of secrets are redacted wherever they turn up.
    """

    __test__: ClassVar[bool] = False  # for test runners that take it for a test

    command: tuple[str, ...] = field(converter=tuple)
    limit_s: float = 600.0
    effect: Effect = "external"
    pass_env: tuple[str, ...] = field(default=(), converter=tuple)
    env: Mapping[str, str] = field(factory=dict, converter=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        if not self.command or not all(isinstance(part, str) and part for part in self.command):
            raise UsageError("command must be the parts of a command, as ('python', '-m', 'pytest', '-q')")

    async def run_tests(self, context: ToolContext, only: tuple[str, ...] = ()) -> ToolOutput:
        """Run the tests of the workspace; says how they ended, which fail, and the end of the output.

        Args:
            context: the call
            only: files or names of tests to run, as the test runner takes them; empty for all

        """
        for name in only:  # behind an @ stands a file of options
            if not name or name.startswith(("-", "@", "/")) or ".." in name.split("/"):
                raise ToolError(f"{name!r} is not the name of tests inside the workspace")
        ended, said = await self._ran(context.workspace, only)
        if ended.cut_off:
            raise OutcomeUnknown(said)
        return ToolOutput(content=said, is_error=ended.code != 0)

    async def check(self, view: GoalView) -> Met | Missing:
        """The goal check `command`: whether all tests of the workspace pass."""
        ended, said = await self._ran(view.workspace)
        return Met() if ended.code == 0 else Missing(said)

    async def _ran(self, folder: str, only: tuple[str, ...] = ()) -> tuple[Ended, str]:
        """How the tests ended, also in words."""
        ended = await run(
            (*self.command, *only),
            folder=folder,
            env=scrubbed(self.pass_env, self.env),
            limit_s=self.limit_s,
            output_max_bytes=OUTPUT_MAX_BYTES,
        )
        lines = [f"{'The tests pass' if ended.code == 0 else 'The tests do not pass'}: {ended.said()}."]
        failing = list(dict.fromkeys(failing_in(ended.output))) if ended.code else []
        if failing:
            more = len(failing) - SHOWN_MAX
            lines += [
                f"Failing ({len(failing)}):",
                *failing[:SHOWN_MAX],
                *([f"... and {more} more"] if more > 0 else []),
            ]
        tail = ended.output[-TAIL_MAX_CHARS:]
        lines += ["The end of the output:" if len(tail) < len(ended.output) else "The output:", tail]
        return ended, "\n".join(lines)

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        """Offer the tool."""
        register(Tool(body=self.run_tests, effect=self.effect, timeout_s=self.limit_s + 2 * END_LIMIT_S))

    @hookimpl
    def register_goal_checks(self, register: Callable[[GoalCheck], None]) -> None:
        """Offer the check."""
        register(GoalCheck(name="command", body=self.check, limit_s=self.limit_s + 2 * END_LIMIT_S))

    @hookimpl
    def register_redactions(self, register: Callable[[Redaction], None]) -> None:
        """Keep out of the log what looks like a secret in `env`."""
        register_values(register, "test_suite", secrets_among(self.env))


def failing_in(output: str) -> Iterator[str]:
    """The names of tests that `output` says to have failed, as far as its form is known."""
    for found in filter(None, map(_FAILING.match, output.split("\n"))):
        yield next(filter(None, found.groups())).strip()[:NAME_MAX_CHARS]
