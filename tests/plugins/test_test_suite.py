"""The test runner: how the tests ended, which fail, and the end of their output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flightlog_hookspecs import ToolOutput, text_of
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_plugins import test_suite
from flightlog_plugins.test_suite import TestSuite, failing_in
from support.workspaces import call_in

pytestmark = pytest.mark.kill


async def run(folder: Path, script: str, *only: str, limit_s: float = 60.0) -> ToolOutput:
    """What a suite returns whose command is `script`."""
    return await TestSuite(command=("/bin/sh", "-c", script, "sh"), limit_s=limit_s).run_tests(call_in(folder), only)


async def test_a_suite_that_passes_says_so(tmp_path: Path) -> None:
    output = await run(tmp_path, "echo 2 passed")
    assert not output.is_error
    assert text_of(output.content) == "The tests pass: exit code 0.\nThe output:\n2 passed\n"


async def test_pytest_itself_is_understood(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    suite = TestSuite(command=(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"))
    text = text_of((await suite.run_tests(call_in(tmp_path))).content)
    assert text.startswith("The tests do not pass: exit code 1.\nFailing (1):\ntest_it.py::test_bad\n")
    good = await suite.run_tests(call_in(tmp_path), ("test_it.py::test_good",))
    assert not good.is_error


@pytest.mark.parametrize(
    ("output", "failing"),
    [
        ("FAILED a.py::test_x - assert 0\nERROR b.py\n", ["a.py::test_x", "b.py"]),
        ("FAIL: test_x (a.B.test_x)\nERROR: test_y (a.B)\n", ["test_x (a.B.test_x)", "test_y (a.B)"]),
        ("--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/sub (0.00s)\n", ["TestX", "TestX/sub"]),
        ("test a::b ... FAILED\ntest a::c ... ok\n", ["a::b"]),
        ("ok 1 - fine\nnot ok 2 - adds up\n", ["adds up"]),
        ("nothing known\n", []),
    ],
)
def test_failing_tests_of_common_runners_are_named(output: str, failing: list[str]) -> None:
    assert list(failing_in(output)) == failing


@pytest.mark.parametrize("line", ["", " ", "\t", "\r", "\f", "ERROR: ", "test ", "not ok 1"])
def test_each_line_is_looked_at_alone(line: str) -> None:
    """What looks on over line ends takes minutes for as many; the runner's own limit would stop it."""
    lines = [line] * (test_suite.OUTPUT_MAX_BYTES // (len(line) + 1))
    assert list(failing_in("\n".join([*lines, "FAILED a.py::test_x"]))) == ["a.py::test_x"]


async def test_however_much_fails_the_result_is_bounded(tmp_path: Path) -> None:
    output = await run(tmp_path, "for i in $(seq 3000); do echo FAILED test_$i; done; exit 1")
    text = text_of(output.content)
    assert "Failing (3000):" in text
    assert "... and 2950 more" in text
    assert text.endswith("FAILED test_3000\n")
    assert len(text) < test_suite.TAIL_MAX_CHARS + 2000


async def test_tests_that_hang_are_ended_and_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutcomeUnknown, match=r"^The tests do not pass: ended when its time was up\.\n"):
        await run(tmp_path, "sleep 1000", limit_s=1.0)


@pytest.mark.parametrize("name", ["", "-p", "--collect-only", "@options", "/etc/passwd", "../x.py", "a/../../b.py"])
async def test_options_and_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError, match="not the name of tests"):
        await run(tmp_path, "touch ran", name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", [(), ("",), ("pytest", 7)])
def test_a_command_that_is_none_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="parts of a command"):
        TestSuite(command=command)
