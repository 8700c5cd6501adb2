"""What a command sees of the host's environment: what every command needs, and what the host names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

ALLOWED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR")

_ALWAYS: Final = {"PATH": os.defpath, "TERM": "dumb"}
"""TERM: nobody who could show colours is looking."""


def scrubbed(names: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names fit `ALLOWED` or `names`, and `more`."""
    wanted = (*ALLOWED, *names)
    passed = {name: value for name, value in os.environ.items() if any(fnmatchcase(name, one) for one in wanted)}
    return {**_ALWAYS, **passed, **more}
