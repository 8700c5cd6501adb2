"""Pytest fixtures for tests of your own plugins; they come with the package, and load the kernel when first used.

    def test_my_tool_answers(kernel_with):
        model = FakeModel([calls(("my_tool", {})), words("It answered.")])
        kernel = kernel_with(Bundle(tools=[my_tool], adapters=[model]))
        with kernel.session("s", model="fake:model") as session:
            session.followup("Use it.")
            assert session.run().text == "It answered."
        model.assert_all_played()

`kernel_with` opens a kernel on a log in memory, through the blocking face, which works in plain tests and in those
that pytest-trio or an asyncio plugin runs. A test that opens a kernel of its own needs a path for it:
`log_in_memory`, or `log_on_disk` where a real disk is what it is about.

    async def test_my_tool_under_trio(log_in_memory):
        async with flightlog.open_kernel(log_in_memory, discover=False, plugins=[...]) as kernel: ...

    def test_my_plugin_survives_every_crash(crash_everywhere):
        crash_everywhere(shop, points=200, nested=25)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from flightlog.runtime.plugins import Discover
    from flightlog.sync import Kernel
    from flightlog.testing.faults.report import Report
    from flightlog.testing.faults.workloads import Workload

CrashEverywhere = Callable[..., "Report"]


class KernelWith(Protocol):
    """What the fixture `kernel_with` is."""

    def __call__(self, *plugins: object, discover: Discover = False, path: Path | None = None) -> Kernel:
        """A kernel that has these plugins."""
        ...


@pytest.fixture
def log_in_memory() -> Iterator[Path]:
    """Where a log can be, on a memory file system where the machine has one; it does not exist yet."""
    from flightlog.testing.memory import memory_folder

    with memory_folder() as folder:
        yield folder / "log.db"


@pytest.fixture
def log_on_disk(tmp_path: Path) -> Path:
    """Where a log can be, among the temporary files that pytest keeps; it does not exist yet."""
    return tmp_path / "log.db"


@pytest.fixture
def kernel_with(log_in_memory: Path) -> Iterator[KernelWith]:
    """A function that opens a kernel with plugins; it is closed when the test ends.

    `discover` is that of `open_kernel`: name the plugins that are to be loaded by their entry points. Called again,
    it closes that kernel and opens the log anew, as after a restart: the one in memory, or the one at `path`.
    """
    from flightlog import sync

    with ExitStack() as opened:

        def kernel_with(*plugins: object, discover: Discover = False, path: Path | None = None) -> Kernel:
            opened.close()
            return opened.enter_context(sync.open_kernel(path or log_in_memory, discover=discover, plugins=plugins))

        yield kernel_with


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
