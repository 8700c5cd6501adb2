"""Files on the command line: given with a message, and shown by what they are, never by their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from flightlog.cli.terminal_text import one_line
from flightlog.core.files import refusal
from flightlog.core.limits import FILE_MAX_BYTES
from flightlog.runtime.inbox import checked_content
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, text_of
from flightlog_hookspecs.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def attach_option(command: F) -> F:
    """`--attach FILE`, any number of times."""
    return click.option(
        "--attach",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        multiple=True,
        help="A file that goes with TEXT, an image for example. May be given more than once.",
    )(command)


def message_of(text: str, attached: Iterable[str]) -> tuple[Block, ...]:
    """The message with the files at the paths `attached`, then `text`. Raises `UsageError` for what cannot go along."""
    return checked_content((*map(_file, attached), *([TextBlock(text=text)] if text.strip() else [])))


def said(content: Iterable[Block]) -> str:
    """What a message says on one line, its files first."""
    blocks = tuple(content)
    files = [shown(block) for block in blocks if isinstance(block, FileBlock)]
    return one_line(" ".join(filter(None, (*files, text_of(blocks)))))


def shown(file: FileBlock) -> str:
    """A file as people are shown it."""
    return f"[{one_line(file.label, len(file.label))}]"


def _file(path: str) -> FileBlock:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    block = FileBlock.of(data, name=os.path.basename(path))
    if why := refusal(block):
        raise UsageError(why)
    return block
