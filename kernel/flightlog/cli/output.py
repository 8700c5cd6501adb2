"""What reaches the terminal: rich text for people or JSON for programs on stdout, diagnostics on stderr."""

from __future__ import annotations

import json
import os
import select
import sys
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from flightlog.cli.terminal_text import one_line, visible

if TYPE_CHECKING:
    from rich.table import Table


_NO_LIMIT: Final = 1_000_000
"""More columns than anything printed has."""


class PipeClosed(Exception):
    """Whoever read our stdout has gone. Nobody is told: nobody is left to read it."""


class _Screen(Console):
    """A console that leaves it to us what a broken pipe means; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """Stdout and stderr of one command.

    A reader that goes away ends the command without a word (`PipeClosed`), unless `outlives_reader`:
    then the command goes on unheard, for what it does matters more than who watches.
    """

    def __init__(self, *, as_json: bool, outlives_reader: bool = False) -> None:
        self.as_json = as_json
        self._outlives_reader = outlives_reader
        self._at_line_start = True
        self.console = _Screen(highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.console.width = _NO_LIMIT  # programs read rows by the line, and no width is theirs

    @property
    def is_terminal(self) -> bool:
        """True when a person is looking at stdout."""
        return self.console.is_terminal

    def json(self, value: Any) -> None:
        """One JSON document on a line of its own, at once."""
        try:
            sys.stdout.write(json.dumps(value) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._reader_gone()

    def line(self, *parts: str | tuple[str, str], fit: bool = False) -> None:
        """One line made of strings and (string, style); with `fit`, cut to the width of the terminal."""
        self.end_line()
        text = Text.assemble(*parts)
        if fit:
            self._print(text, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self._print(text, soft_wrap=True)

    def table(self, table: Table) -> None:
        """A table."""
        self._print(table)

    def stream(self, text: str, style: str = "") -> None:
        """More of a text that is still being written."""
        if text:
            self._print(Text(visible(text), style=style, end=""), end="", soft_wrap=True)
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line unless at the beginning of one."""
        if not self._at_line_start:
            self._print("")
            self._at_line_start = True

    def _print(self, *what: Any, **how: Any) -> None:
        try:
            self.console.print(*what, **how)
        except BrokenPipeError:
            self._reader_gone()

    def _reader_gone(self) -> None:
        silence_stdout()
        if not self._outlives_reader:
            raise PipeClosed


def reader_is_gone() -> bool:
    """Whether nobody can read our stdout any more."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def silence_stdout() -> None:
    """Let everything still written to stdout vanish, also what Python flushes at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


def complain(message: str) -> None:
    """One clear line on stderr."""
    try:
        console = _Screen(stderr=True, highlight=False, markup=False, emoji=False)
        console.print(Text.assemble(("flightlog: ", "bold red"), one_line(message, 2000)), soft_wrap=True)
    except OSError:
        pass  # nowhere left to complain to
