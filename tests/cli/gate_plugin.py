"""A plugin that stops between what a tool did and its result, while there is a named pipe `gate` to tell it by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from flightlog_hookspecs import FinishedCall, Hook, hookimpl


def stand_still(finished: FinishedCall) -> None:
    """Tell whoever reads the pipe which call has ended, and wait to be killed."""
    if os.path.exists("gate"):
        Path("gate").write_text(finished.call.name)
        time.sleep(600)


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Register the gate."""
    register(Hook(point="after_tool", body=stand_still, name="gate", limit_s=600))
