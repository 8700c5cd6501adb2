"""Shared set-up: hypothesis profiles, and `support` on the path."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, settings

from flightlog.store import store as _store

sys.path.insert(0, str(Path(__file__).parent))

# Whether commits wait for the disk is for the tests to say, not for how busy the machine is just now.
setattr(_store, "SLOW_SYNC_S", math.inf)  # noqa: B010  a constant, but for tests

# What a shell runs in the background it starts with Ctrl-C ignored, and so would all that tests press it on.
signal.signal(signal.SIGINT, signal.default_int_handler)

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("quick", max_examples=30, derandomize=True, database=None, **_COMMON)
settings.register_profile("pr", max_examples=600, database=None, **_COMMON)
settings.register_profile("nightly", max_examples=10_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def _tasks_take_turns_by_the_seed(request: pytest.FixtureRequest) -> None:
    """What trio runs first of all that is ready is drawn: from the name of the test, and the seed if there is one."""
    trio._core._run._r.seed(f"{request.config.getoption('hypothesis_seed')} {request.node.nodeid}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a parameter by its type where its repr holds an address: two workers must collect the same names."""
    return f"{argname}: {type(val).__name__}" if " at 0x" in repr(val) else None
