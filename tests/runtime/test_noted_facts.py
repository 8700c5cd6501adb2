"""Facts that tools note: they stay whatever becomes of the conversation and of the process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import flightlog
from flightlog import Limits, Session
from flightlog.core.limits import FACTS_MAX, FACTS_MAX_CHARS
from flightlog.runtime.recovery import OnCrash
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    Compactor,
    Fact,
    FinishedCall,
    Hook,
    PromptSection,
    Redaction,
    Replace,
    StepView,
    Tool,
    ToolContext,
    ToolOutput,
)
from flightlog_hookspecs.events import CompactionEnd, ToolCall, ToolResult, UserMessage
from support.cutting import cut_log
from support.kernels import events_of, records_of, session_of, verified
from support.legal_logs import folded
from support.stock import new_shop, shop_tool, take


async def keep(facts: dict[str, str], failing: bool = False) -> ToolOutput:
    """Note facts."""
    return ToolOutput(content="kept", facts=facts, is_error=failing)


KEEP = Tool(body=keep, mode="parallel", effect="idempotent")


def keeping(*notes: Mapping[str, str]) -> FakeModel:
    """A model that notes these one behind the other, a step each."""
    return FakeModel([*(calls(("keep", {"facts": dict(facts)})) for facts in notes), words("Done.")])


async def run(session: Session) -> None:
    await session.followup("go")
    await session.run()


def facts_of(path: Path, rows: int | None = None) -> dict[str, str]:
    return dict(folded(records_of(path)[:rows]).facts)


async def test_what_was_noted_is_there_by_name_and_an_empty_text_takes_it_away(tmp_path: Path) -> None:
    path, model = (
        tmp_path / "a.db",
        keeping({"sky": "blue", "sea": "grey"}, {"sky": "", "sea": "green", "tree": "big"}),
    )
    async with session_of(path, model, KEEP) as session:
        await run(session)
    assert facts_of(path) == {"sea": "green", "tree": "big"}
    first, _ = events_of(path, ToolResult)
    assert first.facts == (Fact("sky", "blue"), Fact("sea", "grey"))
    assert verified(path, model)


async def test_a_call_that_failed_notes_what_it_says(tmp_path: Path) -> None:
    model = FakeModel([calls(("keep", {"facts": {"door": "locked"}, "failing": True}))])
    async with session_of(tmp_path / "a.db", model, KEEP) as session:
        await run(session)
    assert facts_of(tmp_path / "a.db") == {"door": "locked"}


async def test_sections_and_hooks_are_shown_them(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def render(view: StepView) -> str:
        seen.append(dict(view.facts))
        assert view.task is None
        return ""

    section = PromptSection(name="watch", rank=1, render=render, kind="runtime")
    async with session_of(tmp_path / "a.db", keeping({"sky": "blue"}), KEEP, sections=[section]) as session:
        await run(session)
    assert seen == [{}, {"sky": "blue"}]


@pytest.mark.parametrize(
    "facts",
    [
        {f"f{number}": "x" for number in range(FACTS_MAX + 1)},
        {"sky": "x" * FACTS_MAX_CHARS},
        {"": "x"},
        {"n" * 101: "x"},
    ],
    ids=["many", "long", "nameless", "long name"],
)
async def test_too_much_is_an_error_for_the_model_and_notes_nothing(tmp_path: Path, facts: dict[str, str]) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, keeping({"sky": "blue"}, facts), KEEP) as session:
        await run(session)
    _, refused = events_of(path, ToolResult)
    assert refused.outcome == "error"
    assert refused.text.startswith("The call ran, but its facts ")
    assert facts_of(path) == {"sky": "blue"}


async def test_what_is_too_much_together_is_an_error_of_the_later_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    halves = [("keep", {"facts": {name: "x" * (FACTS_MAX_CHARS // 2)}}) for name in ("a", "b", "c")]
    async with session_of(path, FakeModel([calls(*halves)]), KEEP) as session:
        await run(session)
    assert sorted(result.outcome for result in events_of(path, ToolResult)) == ["error", "error", "ok"]
    assert len(facts_of(path)) == 1


async def test_a_hook_that_replaces_a_result_decides_about_its_facts(tmp_path: Path) -> None:
    def shorten(call: FinishedCall) -> Replace:
        return Replace(ToolOutput(content="shorter", facts=call.facts if "sky" in call.call.arguments else ()))

    hook = Hook(point="after_tool", body=shorten, name="shorten")
    path = tmp_path / "a.db"
    async with session_of(
        path, keeping({"sky": "blue"}, {"pin": "1234"}), KEEP, plugins=[Bundle(hooks=[hook])]
    ) as session:
        await run(session)
    assert facts_of(path) == {"sky": "blue"}


async def test_secrets_stay_out_of_facts(tmp_path: Path) -> None:
    redaction = Redaction(name="pins", body=lambda text: text.replace("1234", "****"))

    async def look() -> ToolOutput:
        """Look."""
        return ToolOutput(content="seen", facts={"pin 1234": "is 1234"})

    path = tmp_path / "a.db"
    model = FakeModel([calls(("look", {}))])
    async with session_of(path, model, Tool(body=look), plugins=[Bundle(redactions=[redaction])]) as session:
        await run(session)
    assert facts_of(path) == {"pin ****": "is ****"}
    assert not any(b"1234" in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize("on_crash", ["close", "continue"])
async def test_after_a_death_at_any_row_they_are_what_the_log_says_and_end_the_same(
    tmp_path: Path, on_crash: OnCrash
) -> None:
    whole, model = tmp_path / "whole.db", keeping({"a": "1"}, {"b": "2", "a": ""}, {"c": "3"})
    async with session_of(whole, model, KEEP) as session:
        await run(session)
    records = records_of(whole)
    (entered,) = [record.seq for record in records if isinstance(record.event, UserMessage)]
    for cut in range(entered, len(records) + 1):
        path = tmp_path / f"{cut}.db"
        cut_log(whole, path, cut)
        before = facts_of(path)
        async with session_of(path, keeping({"a": "1"}, {"b": "2", "a": ""}, {"c": "3"}), KEEP, on_crash=on_crash) as s:
            assert dict(s._journal.state.facts) == before, "opening runs nothing"
            await s.run()
        if on_crash == "continue":
            assert facts_of(path) == {"b": "2", "c": "3"}


async def test_facts_of_a_result_that_was_shortened_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def look(at: int) -> ToolOutput:
        """Look."""
        return ToolOutput(content="and on and on " * 200, facts={f"at {at}": "seen"})

    model = FakeModel([calls(("look", {"at": number})) for number in range(8)])
    plugins = [Bundle(compactors=[Compactor(name="prunes", keep_steps=1)])]
    options = {"plugins": plugins, "limits": Limits(context_tokens=2500)}
    async with session_of(path, model, Tool(body=look, effect="read"), **options) as session:  # type: ignore[arg-type]
        await run(session)
    assert events_of(path, CompactionEnd)
    shortened = [event.facts for event in events_of(path, ToolResult) if event.replaces is not None]
    assert set(shortened) == {()}
    assert facts_of(path) == {f"at {number}": "seen" for number in range(8)}
    with flightlog.sync.open_kernel(path, discover=False, plugins=[Bundle(adapters=[model])]) as kernel:
        kernel.fork("s", 1, "f")
    assert dict(folded(records_of(path, "f")).facts) == facts_of(path)
    assert verified(path, model)


@pytest.mark.parametrize("on_crash", ["close", "continue"])
async def test_a_transactional_call_that_was_committed_has_noted_what_its_done_row_says(
    tmp_path: Path, on_crash: OnCrash
) -> None:
    shop = new_shop(tmp_path / "shop.db", "wal")

    def body(context: ToolContext) -> ToolOutput:
        return ToolOutput(content=str(take(context)), facts={"order": "sold"})

    model = FakeModel([calls(("take", {})), words("Done.")])
    async with session_of(tmp_path / "whole.db", model, shop_tool(shop, body)) as session:
        await run(session)
    (started,) = [record.seq for record in records_of(tmp_path / "whole.db") if isinstance(record.event, ToolCall)]
    cut_log(tmp_path / "whole.db", tmp_path / "a.db", started)
    async with session_of(tmp_path / "a.db", model, shop_tool(shop, body), on_crash=on_crash) as session:
        await session.run()
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert (result.told_by, result.facts) == ("done_row", (Fact("order", "sold"),))
