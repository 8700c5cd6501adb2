"""The other end of `tool_process`: run as a script, calls one function, answers on its first stdout.

Imports nothing of flightlog itself, so that starting it costs little more than Python.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from typing import Any

PR_SET_PDEATHSIG = 1
CARRIED = frozenset(
    {
        *(("builtins", name) for name in ("dict", "list", "str", "int", "float")),
        *(("flightlog_hookspecs.content", f"{name}Block") for name in ("Text", "Thinking", "ToolCall", "File")),
        *(("flightlog_hookspecs.tools", name) for name in ("ToolOutput", "Fact")),
    }
)
"""The classes that an answer may name: to read one must run no code but theirs."""


class Carrier(pickle.Pickler):
    """Writes an answer: plain values, and what the contract has for results. Raises `TypeError` for all else."""

    def reducer_override(self, value: object) -> Any:
        """How to write what is no plain value itself: as the one that it is meant to be."""
        kind = type(value)
        named = value if isinstance(value, type) else kind
        if (named.__module__, named.__qualname__) in CARRIED:
            return NotImplemented
        if isinstance(value, Mapping):
            return dict, (dict(value.items()),)
        if isinstance(value, (list, tuple)):
            return list, (list(value),)
        if isinstance(value, str):
            return str, (str.__str__(value),)
        for base in (int, float):
            if isinstance(value, base):
                return base, (base(value),)
        raise TypeError(f"{kind.__name__} is not a JSON value")


def main() -> None:
    """Read (parent, sys.path, module, qualified name, arguments), write (kind, value): see `_kind_of`, or "ok"."""
    # Die with the kernel: an orphan's effect would come after recovery has called it unknown.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    asked = os.getpid()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the body prints must not be taken for its answer
    parent, path, module, name, pickled = pickle.load(sys.stdin.buffer)  # noqa: S301  our own kernel's request
    if os.getppid() != parent:
        os._exit(1)  # it died while we were starting, before it could take us with it
    sys.path[:] = path
    answer = _answer(module, name, pickled)
    if os.getpid() != asked:
        os._exit(0)  # a child that the body has left behind, and that returned as well
    answers.write(answer)
    answers.flush()
    os._exit(0)


def _answer(module: str, name: str, pickled: bytes) -> bytes:
    try:
        body: object = importlib.import_module(module)
        for part in name.split("."):
            body = getattr(body, part)
        body = getattr(body, "body", body)  # the decorated name holds a Tool
        leading, arguments = pickle.loads(pickled)  # noqa: S301
        value = body(*leading, **arguments)  # type: ignore[operator]
    except BaseException as error:
        kind = _kind_of(error)
        return pickle.dumps((kind, f"{type(error).__name__}: {_said(error)}" if kind == "error" else _said(error)))
    try:
        return _carried(("ok", value))
    except BaseException as error:
        why = f"returned something that cannot leave its process ({type(error).__name__}: {_said(error)})"
        return pickle.dumps(("tool", f"The call ran, but {why}. Its effects stand."))


def _kind_of(error: BaseException) -> str:
    """What the kernel makes of it, by the names of its classes: to know those themselves would be to import them."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return "unknown" if "OutcomeUnknown" in names else "tool" if "ToolError" in names else "error"


def _carried(answer: tuple[str, object]) -> bytes:
    written = io.BytesIO()
    Carrier(written, protocol=5).dump(answer)
    return written.getvalue()


def _said(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except BaseException:
        return "(its message cannot be shown)"


if __name__ == "__main__":
    main()
