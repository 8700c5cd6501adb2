"""The other end of `tool_process`: run as a script, calls one function, answers on its first stdout.

Imports nothing of flightlog itself, so that starting it costs little more than Python.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read (parent, sys.path, module, qualified name, arguments), write ("ok" | "error" | "tool", value)."""
    # Die with the kernel: an orphan's effect would come after recovery has called it unknown.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the body prints must not be taken for its answer
    parent, path, module, name, pickled = pickle.load(sys.stdin.buffer)  # noqa: S301  our own kernel's request
    if os.getppid() != parent:
        os._exit(1)  # it died while we were starting, before it could take us with it
    sys.path[:] = path
    try:
        body: object = importlib.import_module(module)
        for part in name.split("."):
            body = getattr(body, part)
        body = getattr(body, "body", body)  # the decorated name holds a Tool
        leading, arguments = pickle.loads(pickled)  # noqa: S301
        answer = ("ok", body(*leading, **arguments))  # type: ignore[operator]
        raw = pickle.dumps(answer)
    except BaseException as error:
        kind = "tool" if type(error).__name__ == "ToolError" else "error"
        try:
            text = str(error)
        except Exception:
            text = "(its message cannot be shown)"
        raw = pickle.dumps((kind, text if kind == "tool" else f"{type(error).__name__}: {text}"))
    answers.write(raw)
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
