"""Bodies for tools that run in a process of their own: importable by name."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flightlog import tool
from flightlog_hookspecs import FileBlock, ToolContext, ToolOutput
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="read", isolation="process")
def decorated(text: str) -> str:
    """Shout."""
    return text.upper()


def who(context: ToolContext) -> dict[str, object]:
    """Say which call this is, and in which process."""
    return {"pid": os.getpid(), "invocation": context.invocation_id, "position": context.position}


def draws() -> ToolOutput:
    """Draw a picture."""
    return ToolOutput(content=(FileBlock.of(b"\x89PNG drawn", name="drawn.png"),))


def prints(text: str) -> str:
    """Say things on standard output, in every way."""
    print(text, flush=True)  # noqa: T201
    os.write(1, b"\x80\x05junk that must not be taken for the answer")
    return f"said {text}"


def environment(name: str) -> str:
    """Say what a variable holds."""
    return os.environ[name]


def segfault() -> str:
    """Read what must not be read."""
    ctypes.string_at(0)
    return "survived"


def leaves(code: int) -> str:
    """End the process without a word."""
    os._exit(code)


def kills_itself() -> str:
    """End as by the kernel's OOM killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def exits() -> str:
    """Exit by the book."""
    sys.exit("bye")


def spins(path: str) -> str:
    """Never come back from C code: no signal handler, no other thread ever runs again."""
    Path(path).write_text(str(os.getpid()))
    ctypes.PyDLL(None).pause()
    return "survived"


def raises() -> str:
    """Raise."""
    raise ValueError("from afar")


def refuses() -> str:
    """Refuse."""
    raise ToolError("say please")


def unpicklable() -> object:
    """Return what no other process can read."""
    return lambda: None


class Trap:
    """A value that does something where it is read."""

    def __init__(self, act: Callable[..., object], *arguments: object) -> None:
        self._made_by = (act, arguments)

    def __reduce__(self) -> Any:
        return self._made_by


def interrupted() -> None:
    """Raise what a Ctrl-C does."""
    raise KeyboardInterrupt


def trapped(way: str) -> object:
    """Return what does something where it is read."""
    return {"sleeps": Trap(time.sleep, 600), "exits": Trap(os._exit, 9), "interrupts": Trap(interrupted)}[way]


def forges(way: str) -> object:
    """Write such an answer past the worker that would refuse it."""
    for pipe in range(3, 10):
        with suppress(OSError):
            os.write(pipe, pickle.dumps(("ok", trapped(way))))
    os._exit(0)


class Odd(str):
    """A text of a class of its own."""

    __slots__ = ()


def meant() -> object:
    """Return values that are meant as plain ones."""
    odd = OrderedDict({Odd("a"): (1, True), "b": Number.ONE, "c": [Odd("d"), 1.5, None]})
    return MappingProxyType(odd)


class Number(IntEnum):
    """Numbers."""

    ONE = 1


def twice() -> str:
    """Return in a child, too, and first there."""
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return "parent"
    return "child"


class Parting(Exception):
    """An error whose words end the process."""

    def __str__(self) -> str:
        raise SystemExit(3)


def parts() -> str:
    """Fail with words that end the process."""
    raise Parting


def junk() -> bytes:
    """Return bytes that are no text."""
    return b"\xff\x00\xfe"


def large(size: int) -> str:
    """Return a lot."""
    return "x" * size


def waits(marker: str, fifo: str) -> str:
    """Say that it runs, then wait for a word that may never come."""
    words = os.open(fifo, os.O_RDWR)  # open before it is known that this runs, or the word could get lost
    Path(marker).write_text(str(os.getpid()))
    return os.read(words, 1000).decode()


def effect(marker: str, fifo: str, target: str) -> str:
    """Wait for a word, then do something that can be seen."""
    waits(marker, fifo)
    with open(target, "a") as file:
        file.write("done\n")
    return "done"


class Mute(ToolError):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("I cannot say")


def mute() -> str:
    """Fail without words."""
    raise Mute


def forks() -> str:
    """Answer at once, and leave a child behind that holds everything open."""
    if os.fork() == 0:
        signal.pause()
    return "answered"


class Overdrawn(ToolError):
    """A tool's own kind of error."""


class Unheard(OutcomeUnknown):
    """And of a doubt."""


def has_no_answer(own: bool) -> str:
    """Pay, and hear nothing."""
    raise (Unheard if own else OutcomeUnknown)("the bank did not answer")


def is_overdrawn() -> str:
    """Pay too much."""
    raise Overdrawn("there are 3 cents left")
