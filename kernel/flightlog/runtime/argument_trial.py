"""Arguments tried on a schema that may take for ever, in a process that the tool's worker runs."""

from __future__ import annotations

import signal
from typing import Final

from flightlog.core import canonical
from flightlog.core.tool_schema import validator_of

_MAX_S: Final = 0.25
"""Of computing. What passes is judged once more beside the kernel, which waits that long."""


def tried(schema: str, raw: str) -> None:
    """Judge the arguments `raw` by `schema`; a process that is not done in time dies of it."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_S)
    for _ in validator_of(schema).iter_errors(canonical.loads(raw)):
        pass
