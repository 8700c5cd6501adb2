"""Commands in the workspace. Never on by default: the host passes it in.

    flightlog.open_kernel(path, workspace=folder, plugins=[Shell(), ApprovalPolicy()])

A command may do whatever the user of this process may: read other files, also the host's own environment by its
process id, and reach the network. What it sees of the environment by itself is a short list. Whoever wants more
confinement runs the host in a container. Keep the log outside the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import field, frozen

from flightlog_hookspecs import Redaction, Tool, ToolContext, ToolOutput, hookimpl
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_plugins.secrets import register_values, secrets_among
from flightlog_plugins.shell.running import END_LIMIT_S, Ended, run
from flightlog_plugins.shell.surroundings import scrubbed

__all__ = ["Shell"]

OUTPUT_MAX_BYTES: Final = 1024 * 1024
"""As much of an output is kept: its beginning and its end. What is too long for the model is in the log."""


@frozen(kw_only=True)
class Shell:
    """A plugin with one tool, `run_command`.

    A command may take `limit_s` seconds, or as many as the model wants up to `limit_max_s`. It sees the variables that
    every command needs, those that `pass_env` names (patterns as in a shell), and `env`. Values of `env` whose names
    look like those of secrets are redacted wherever they turn up.
    """

    limit_s: float = 120.0
    limit_max_s: float = 600.0
    output_max_bytes: int = OUTPUT_MAX_BYTES
    pass_env: tuple[str, ...] = field(default=(), converter=tuple)
    env: Mapping[str, str] = field(factory=dict, converter=dict, repr=False)
    shell: tuple[str, ...] = field(default=("/bin/sh", "-c"), converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.limit_s <= self.limit_max_s:
            raise UsageError(f"limit_s must be over 0 and at most limit_max_s, not {self.limit_s}")

    async def run_command(self, context: ToolContext, command: str, limit_s: float = 0) -> ToolOutput:
        """Run a command with the shell, in the workspace. It reads nothing; what it starts ends with it.

        Args:
            context: the call
            command: what the shell is given
            limit_s: seconds it may take; 0 for as many as usual

        """
        if not 0 <= limit_s <= self.limit_max_s:
            raise ToolError(f"limit_s must be from 0 to {self.limit_max_s:g}, not {limit_s:g}")
        limit_s = limit_s or self.limit_s
        ended = await run(
            (*self.shell, command),
            folder=context.workspace,
            env=scrubbed(self.pass_env, self.env),
            limit_s=limit_s,
            output_max_bytes=self.output_max_bytes,
        )
        said = f"{ended.output}\n[{_said(ended, limit_s)}]"
        if ended.cut_off:
            raise OutcomeUnknown(said)
        return ToolOutput(content=said, is_error=ended.code != 0)

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        """Offer the tool."""
        register(Tool(body=self.run_command, effect="external", timeout_s=self.limit_max_s + 2 * END_LIMIT_S))

    @hookimpl
    def register_redactions(self, register: Callable[[Redaction], None]) -> None:
        """Keep out of the log what looks like a secret in `env`."""
        register_values(register, "shell", secrets_among(self.env))


def _said(ended: Ended, limit_s: float) -> str:
    return f"ended after {limit_s:g} s, its time limit" if ended.why == "late" else ended.said()
