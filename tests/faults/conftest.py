"""How hard to look, by profile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")


@pytest.fixture(scope="session")
def effort() -> int:
    """By how much to multiply the number of faults."""
    return {"quick": 1, "pr": 20}.get(_PROFILE, 200)
