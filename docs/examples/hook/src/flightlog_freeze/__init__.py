"""A guard that goes by a file: tools that are frozen are not called, and who cannot read the file says no.

It lets nothing through that it could not look up: what goes wrong here raises, and a guard that raises counts as a no.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from flightlog_hookspecs import Deny, Hook, ProposedCall, Verdict, hook, hookimpl

flightlog_contract = 1


def freeze(path: Path) -> Hook:
    """The guard. `path` holds a JSON object: the names of tools, and why each is frozen. No file freezes nothing."""

    @hook("before_tool", name="freeze", limit_s=2.0)
    def frozen(call: ProposedCall) -> Verdict:
        reasons: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return Deny(f"{call.name} is frozen: {reasons[call.name]}") if call.name in reasons else None

    return frozen


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Offer the hook."""
    register(freeze(Path(os.environ.get("FLIGHTLOG_FREEZE", "freeze.json"))))
