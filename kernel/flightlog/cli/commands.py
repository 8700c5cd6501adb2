"""The families of subcommands, each imported once it is called: help, completion and errors cost no kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem


class Home(NamedTuple):
    """Where a command is defined, and its line in the overview."""

    module: str
    name: str
    gist: str


COMMANDS: Final = {
    "approve": Home("letters", "approve", "Answer a question about a tool call, or list the open ones."),
    "backup": Home("backup", "backup", "Copy the whole log while it is in use."),
    "cancel": Home("letters", "cancel", "Cancel a session's running turn."),
    "demo": Home("demo", "demo", "Kill an agent, resume it, prove it whole."),
    "export": Home("exchange", "export_command", "Write a session as JSONL."),
    "fork": Home("fork", "fork", "Go on from an earlier turn in a new session."),
    "fuzz": Home("fuzz", "fuzz", "Crash the kernel everywhere, and see that its promises are kept."),
    "import": Home("exchange", "import_command", "Take in a session from JSONL."),
    "plugins": Home("plugins", "plugins", "List the plugins, and why some were left out."),
    "purge": Home("purge", "purge", "Remove sessions for good."),
    "query": Home("query", "query", "Run one SELECT over the log."),
    "repair": Home("repair", "repair", "Keep what is sound of a damaged log."),
    "resume": Home("run", "resume", "Recover a session and run it."),
    "run": Home("run", "run", "Deliver a message and run the session."),
    "send": Home("letters", "send", "Send a message to a session, whoever drives it."),
    "sessions": Home("show", "sessions", "List the sessions."),
    "show": Home("show", "show", "Show a session's flight log."),
    "tail": Home("tail", "tail", "Show the newest events of a session, and follow it."),
    "task": Home("task", "task", "Submit tasks, look at them, steer them."),
    "timer": Home("timers", "timer", "Have a session woken at a time; list and cancel timers."),
    "verify": Home("verify", "verify", "Check everything that can be checked."),
    "work": Home("work", "work", "Carry out tasks."),
}


class PipeBroke(Exception):
    """`pipe` was raised. Click would make a SystemExit of it that does not say so."""

    def __init__(self, pipe: BrokenPipeError) -> None:
        super().__init__(str(pipe))
        self.pipe = pipe


@contextmanager
def _telling_of_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeBroke(error) from error


class LazyGroup(click.Group):
    """The commands of the table."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """As click does; help is printed here."""
        with _telling_of_pipes():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; commands are run here."""
        with _telling_of_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The one of that name, imported; None when there is none."""
        if (home := COMMANDS.get(cmd_name)) is None:
            return None
        command: click.Command = getattr(import_module(f"flightlog.cli.{home.module}"), home.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the overview."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.gist) for name, home in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Their names that begin so, and the options."""
        names = [CompletionItem(name, help=home.gist) for name, home in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
