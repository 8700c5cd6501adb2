"""Writes the golden files anew: run it by hand when the schema has changed, which no released version may do."""

from __future__ import annotations

from pathlib import Path
from typing import get_args
from unittest import mock

from flightlog.testing.faults import named, run_power_loss
from flightlog.testing.faults.disk import Mode
from flightlog.testing.faults.golden import SUFFIX
from flightlog.testing.faults.oracles import Broken
from flightlog.testing.faults.power_loss import Crash, _Checks

FOLDER = Path(__file__).parent / "golden"


def remake(path: Path) -> None:
    """The name says which crash of which script it is: workload-mode-operation, or two operations for a second one."""
    workload, mode, *operations = path.name.removesuffix(SUFFIX).split("-")
    assert mode in get_args(Mode)
    trail = tuple(Crash(int(at), mode) for at in operations)
    kept = Broken("P1", "it is to be kept")
    with mock.patch.object(_Checks, "of_image", return_value=[kept]):
        (found,) = run_power_loss(named(workload), only=trail).violations
    assert found.golden
    path.unlink()
    found.golden.save(str(path))
    assert found.golden.broken() == []


if __name__ == "__main__":
    for path in sorted(FOLDER.glob(f"*{SUFFIX}")):
        remake(path)
