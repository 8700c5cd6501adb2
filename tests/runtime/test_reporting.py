"""A body says how far it is: people see it as it comes, the log keeps it, the model never hears of it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core import limits
from flightlog.core.limits import PROGRESS_EVERY_S, PROGRESS_MAX_CHARS
from flightlog.events import ToolCall, ToolProgress, ToolResult
from flightlog.runtime import reporting
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Redaction, ToolContext, tool
from support.children import until
from support.kernels import events_of, opened, records_of, trio_clock, verified
from support.memory_folder import subfolder

Body = Callable[[ToolContext], Awaitable[Any]]


async def told(path: Path, body: Body, *, effect: Any = "read", plugins: Any = ()) -> tuple[list[str], FakeModel]:
    """What stands in the log of what the body said, and the model that called it."""

    @tool(mode="parallel", effect=effect)
    async def work(context: ToolContext) -> str:
        """Work."""
        await body(context)
        return "done"

    return await ran(path, work, plugins=plugins)


async def ran(path: Path, work: Any, *, plugins: Any = ()) -> tuple[list[str], FakeModel]:
    model = FakeModel([calls(("work", {})), words("Well done.")])
    async with opened(path, model, work, plugins=plugins) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    verified(path, model)
    return [event.text for event in events_of(path, ToolProgress)], model


async def test_what_a_body_says_stands_in_the_log_between_its_call_and_its_result(tmp_path: Path) -> None:
    seen: list[str] = []

    async def body(context: ToolContext) -> None:
        context.report("half way")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)

    async def watch(scope: trio.CancelScope) -> None:
        async with opened(path, FakeModel([])) as other:
            async for record in other.read("s").events():
                if isinstance(record.event, ToolProgress):
                    seen.append(record.event.text)
                    scope.cancel()

    path = tmp_path / "a.db"
    reported, model = await told(path, body)
    assert reported == seen == ["half way"]
    call, progress, result = (
        record for record in records_of(path) if isinstance(record.event, (ToolCall, ToolProgress, ToolResult))
    )
    assert isinstance(progress.event, ToolProgress)
    assert progress.event.call_seq == call.seq < progress.seq < result.seq
    assert b"half way" not in b"".join(fragment for request in model.requests for fragment in request)


async def test_words_that_come_too_fast_are_the_newest_ones(tmp_path: Path, autojump_clock: object) -> None:
    async def body(context: ToolContext) -> None:
        for number in range(1, 101):
            context.report(f"{number} %")
            await trio.sleep(PROGRESS_EVERY_S / 10)

    reported, _ = await told(tmp_path / "a.db", body)
    assert reported[0] == "1 %"
    assert 9 <= len(reported) <= 11
    numbers = [int(text.removesuffix(" %")) for text in reported]
    assert numbers == sorted(set(numbers))


async def test_a_thread_is_heard_too_and_so_is_one_that_it_starts(tmp_path: Path) -> None:
    @tool(mode="parallel", effect="read")
    def work(context: ToolContext) -> str:
        """Work."""
        thread = threading.Thread(target=context.report, args=("from a thread",))
        thread.start()
        thread.join()
        # What was said is written before the body ends only if it gives that the time.
        deadline = threading.Event()
        while not events_of(path, ToolProgress):
            deadline.wait(0.001)
        return "done"

    path = tmp_path / "a.db"
    assert (await ran(path, work))[0] == ["from a thread"]


async def test_who_says_something_after_its_end_is_not_heard(tmp_path: Path) -> None:
    kept: list[ToolContext] = []

    async def body(context: ToolContext) -> None:
        kept.append(context)

    reported, _ = await told(tmp_path / "a.db", body)
    assert reported == []
    kept[0].report("much later")  # nothing runs any more


@pytest.mark.parametrize("nonsense", [None, 7, b"half", "", ["a"]])
async def test_what_is_no_text_is_no_report_and_no_fault(tmp_path: Path, nonsense: Any) -> None:
    async def body(context: ToolContext) -> None:
        context.report(nonsense)
        await trio.testing.wait_all_tasks_blocked()

    assert (await told(tmp_path / "a.db", body))[0] == []


@given(text=st.text(st.characters(codec=None), min_size=1) | st.just("\ud83d\ude00") | st.just("x" * 20_000))
async def test_any_text_whatever_is_kept_as_far_as_there_is_room(tmp_path: Path, text: str) -> None:
    async def body(context: ToolContext) -> None:
        context.report(text)
        await trio.testing.wait_all_tasks_blocked()

    (reported,), _ = await told(subfolder(tmp_path) / "a.db", body)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert reported == whole[:PROGRESS_MAX_CHARS]


async def test_secrets_are_kept_out_of_what_is_said(tmp_path: Path) -> None:
    async def body(context: ToolContext) -> None:
        context.report("." * (PROGRESS_MAX_CHARS - 3) + "hunter2")
        await trio.testing.wait_all_tasks_blocked()

    redaction = Redaction(name="secrets", body=lambda text: text.replace("hunter2", "[secret]"))
    (reported,), _ = await told(tmp_path / "a.db", body, plugins=[Bundle(redactions=[redaction])])
    assert reported.endswith("...[se")
    for file in tmp_path.iterdir():
        assert b"hun" not in file.read_bytes()


async def test_one_call_fills_no_disk_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "PROGRESS_ROWS_MAX", 3)
    monkeypatch.setattr(reporting, "PROGRESS_EVERY_S", 0.0)

    async def body(context: ToolContext) -> None:
        for number in range(9):
            context.report(str(number))
            await trio.testing.wait_all_tasks_blocked()

    assert (await told(tmp_path / "a.db", body))[0] == ["0", "1", "2"]
    assert limits.PROGRESS_ROWS_MAX == 10_000


@pytest.mark.parametrize("now", [False, True])
async def test_a_cancel_is_not_held_up_by_what_is_still_to_be_said(
    tmp_path: Path, now: bool, autojump_clock: object
) -> None:
    path = tmp_path / "a.db"

    @tool(mode="parallel", effect="read")
    async def work(context: ToolContext) -> None:
        """Work."""
        while True:
            context.report("still at it")
            await trio.sleep(0.01)

    model = FakeModel([calls(("work", {}))])
    async with (
        opened(path, model, work, clock=trio_clock()) as kernel,
        kernel.session("s", model="fake:m") as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("go")
        nursery.start_soon(session.run)
        await until(lambda: events_of(path, ToolProgress))
        session.cancel(now=now)
    verified(path, model)
    assert [event.outcome for event in events_of(path, ToolResult)] == ["aborted"]
