"""The fault laboratory: crash the real kernel at every operation on its disk, and see that every promise is kept.

    from flightlog.testing.faults import SCRIPTS, run_io_errors, run_power_loss

    for workload in SCRIPTS:
        report = run_power_loss(workload, seed=1, points=500, nested=100)
        report.merge(run_io_errors(workload, seed=1, points=100))
        assert not report.violations, report

To try a tool of yours, `script_of` makes a workload of its calls. For more, write a `Workload`: the plugins,
and what a host does with them. The module `oracles` lists the promises. A run patches this process (clock,
scheduler, SQLite's VFS): run nothing else beside it. Linux only.
"""

from flightlog.testing.faults.disk import Mode
from flightlog.testing.faults.host import GO_ON
from flightlog.testing.faults.io_errors import run_io_errors
from flightlog.testing.faults.of_tool import script_of
from flightlog.testing.faults.oracles import Broken, Promise
from flightlog.testing.faults.power_loss import Crash, run_power_loss
from flightlog.testing.faults.recorder import Fault, Plan
from flightlog.testing.faults.report import Report, Violation
from flightlog.testing.faults.workloads import (
    SCRIPTS,
    Failing,
    Filing,
    Judging,
    Order,
    Script,
    Workload,
    named,
    random_script,
)
from flightlog.testing.faults.world import World

__all__ = [
    "GO_ON",
    "SCRIPTS",
    "Broken",
    "Crash",
    "Failing",
    "Fault",
    "Filing",
    "Judging",
    "Mode",
    "Order",
    "Plan",
    "Promise",
    "Report",
    "Script",
    "Violation",
    "Workload",
    "World",
    "named",
    "random_script",
    "run_io_errors",
    "run_power_loss",
    "script_of",
]
