"""The pytest fixture `crash_everywhere`, for tests of your own plugins.

def test_my_plugin_survives_every_crash(crash_everywhere):
    crash_everywhere(shop, points=200, nested=25)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flightlog.testing.faults.report import Report
    from flightlog.testing.faults.workloads import Workload

CrashEverywhere = Callable[..., "Report"]


@pytest.fixture
def crash_everywhere() -> CrashEverywhere:
    """A function that crashes a workload and lets its disk fail, and fails the test when a promise is broken.

    `faults` is how many faults of the disk to try; all else goes to `run_power_loss`. Returns the report.
    """

    def crash(workload: Workload, *, seed: int = 0, faults: int = 20, **how: Any) -> Report:
        from flightlog.testing.faults import run_io_errors, run_power_loss

        report = run_power_loss(workload, seed=seed, **how)
        if faults:
            report.merge(run_io_errors(workload, seed=seed, points=faults))
        if report.violations:
            pytest.fail(f"promises are broken\n\n{report.table()}", pytrace=False)
        return report

    return crash
