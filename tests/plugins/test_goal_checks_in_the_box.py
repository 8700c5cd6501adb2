"""The goal checks in the box, asked by a worker: the workspace's tests, an answer in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flightlog import TaskSummary
from flightlog.cli.app import flightlog
from flightlog.errors import UsageError
from flightlog.testing import FakeModel, words
from flightlog_hookspecs.events import GoalChecked, RequestSent
from flightlog_plugins import goal_checks
from flightlog_plugins.test_suite import TestSuite
from support.kernels import events_of, opened

SCHEMA = {"type": "object", "properties": {"legs": {"type": "integer"}}, "required": ["legs"]}


async def worked(path: Path, model: FakeModel, plugin: object, **wanted: object) -> TaskSummary:
    """What a worker makes of a task, in a workspace of its own."""
    (path / "workspace").mkdir(exist_ok=True)
    async with opened(path / "s.db", model, plugins=[plugin], workspace=path / "workspace") as kernel:
        await kernel.tasks.submit("go", model="fake:m", id="t", **wanted)  # type: ignore[arg-type]
        await kernel.work(until_idle=True)
        return await kernel.tasks.show("t")


async def test_a_task_is_done_once_its_answer_fits_the_schema_in_its_parameters(tmp_path: Path) -> None:
    model = FakeModel([words("Eight."), words('{"legs": "8"}'), words('{"legs": 8}')])
    task = await worked(tmp_path, model, goal_checks, goal_check="answer_matches", parameters={"output_schema": SCHEMA})
    assert (task.state, task.goal_met) == ("completed", True)
    first, second, third = events_of(tmp_path / "s.db", GoalChecked, "t")
    assert first.missing.startswith("Your answer does not fit: it is not JSON")
    assert '"legs":{"type":"integer"}' in first.missing
    assert "'8' is not of type 'integer'" in second.missing
    assert third.met


@pytest.mark.parametrize("parameters", [{}, {"output_schema": 7}, {"output_schema": {"type": 7}}])
async def test_a_task_without_a_schema_is_paused(tmp_path: Path, parameters: dict[str, object]) -> None:
    model = FakeModel([words("Eight.")])
    task = await worked(tmp_path, model, goal_checks, goal_check="answer_matches", parameters=parameters)
    assert (task.state, task.cause, task.goal_met) == ("paused", "goal_check", None)
    assert "schema" in task.message


async def test_a_task_is_done_once_the_tests_of_the_workspace_pass(tmp_path: Path) -> None:
    suite = TestSuite(command=("/bin/sh", "-c", "test -e passes || { echo 'FAILED test_it.py::test_it'; exit 1; }"))

    async def repair() -> None:
        (tmp_path / "workspace" / "passes").touch()

    model = FakeModel([words("Done."), [repair, *words("Now it is.")]])
    task = await worked(tmp_path, model, suite, goal_check="command")
    assert (task.state, task.goal_met) == ("completed", True)
    first, second = events_of(tmp_path / "s.db", GoalChecked, "t")
    assert first.missing.startswith("The tests do not pass: exit code 1.\nFailing (1):\ntest_it.py::test_it")
    assert second.met


async def test_a_check_that_nobody_offers_is_refused_at_once_and_pauses_a_task_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    model = FakeModel([words("Done.")])
    async with opened(tmp_path / "s.db", model, plugins=[goal_checks]) as kernel:
        with pytest.raises(UsageError, match=r"no goal check named 'command' \(known: answer_matches\)"):
            await kernel.tasks.submit("go", model="fake:m", goal_check="command")
        await kernel.tasks.submit("go", model="fake:m", goal_check="answer_matches", id="t")
    async with opened(tmp_path / "s.db", model) as kernel:
        await kernel.work(until_idle=True)
        task = await kernel.tasks.show("t")
    assert (task.state, task.cause) == ("paused", "goal_check")
    assert task.message == "no goal check named 'answer_matches' (known: none). Install or pass its plugin."
    assert events_of(tmp_path / "s.db", RequestSent, "t") == []


async def test_a_task_that_repeats_itself_fails_and_says_why(tmp_path: Path) -> None:
    model = FakeModel([words("Done.") for _ in range(9)])
    task = await worked(tmp_path, model, goal_checks, goal_check="answer_matches", parameters={"output_schema": SCHEMA})
    assert (task.state, task.cause, task.goal_met) == ("failed", "no_progress", False)
    assert task.message == "3 steps in a row brought nothing new: the same words without a call"


async def test_a_report_says_what_became_of_a_task_in_words_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FakeModel([words("Done.") for _ in range(9)])
    await worked(tmp_path, model, goal_checks, goal_check="answer_matches", parameters={"output_schema": SCHEMA})
    async with opened(tmp_path / "s.db", model) as kernel:
        found = await kernel.tasks.report("t")
        with pytest.raises(UsageError, match="no task 'u'"):
            await kernel.tasks.report("u")
    assert (found.at.state, len(found.steps), len(found.checks)) == ("failed", 4, 4)
    for options in ([], ["--json"]):
        flightlog.main(["task", "report", "t", "--db", str(tmp_path / "s.db"), *options], standalone_mode=False)
    text, form = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert "no_progress: 3 steps in a row brought nothing new: the same words without a call" in text
    assert json.loads(form)["turns"][0]["reason"] == "no_progress"
