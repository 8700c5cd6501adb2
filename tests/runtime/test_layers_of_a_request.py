"""The layers of a request where a head begins: system text, what is remembered and said, and working memory last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from attrs import frozen
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.core.context import given as texts_given
from flightlog.testing import Attempts, Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import (
    Compactor,
    FailedRequest,
    Hook,
    PromptSection,
    StepView,
    Switch,
    Tool,
    UserMessage,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import CompactionEnd, RequestHeader, RequestSent
from flightlog_plugins import memory, working_memory
from support.conversation import assert_conversation
from support.kernels import opened, records_of, verified
from support.legal_logs import folded
from support.memory_folder import subfolder

REMEMBERED = "memory"
WORKING = "working_memory"


@frozen(kw_only=True)
class Turn:
    """What happens in one turn: what sections say by then, what is noted, and what makes a new head."""

    rules: str
    remembered: str
    noted: dict[str, str]
    looks: int
    tool: bool
    reopens: bool
    switches: bool
    fails: bool


turns = st.builds(
    Turn,
    rules=st.sampled_from(["Be brief.", "Be kind.", ""]),
    remembered=st.sampled_from(["", "heron", "stork"]),
    noted=st.dictionaries(st.sampled_from(["sky", "sea", "next step"]), st.sampled_from(["", "blue"]), max_size=2),
    looks=st.integers(0, 3),
    tool=st.booleans(),
    reopens=st.booleans(),
    switches=st.booleans(),
    fails=st.booleans(),
)


async def look() -> str:
    """Look."""
    return "and on and on " * 20


def replies(turn: Turn) -> list[Any]:
    """What the model does in it."""
    made: list[list[Cue]] = [calls(("look", {})) for _ in range(turn.looks)]
    if turn.noted:
        made.insert(turn.looks // 2, calls(("note", {"facts": turn.noted})))
    answers: list[Any] = [*made, words("Done.")]
    if turn.fails:
        answers[-1] = Attempts(([ProviderError("server", "no")], words("Done at last.")))
    return answers


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(turns, min_size=1, max_size=6), most=st.sampled_from([None, None, 600]))
def test_where_a_head_begins_working_memory_is_last_and_the_system_text_first(
    tmp_path: Path, turns: list[Turn], most: int | None
) -> None:
    path, model = subfolder(tmp_path) / "a.db", FakeModel([reply for turn in turns for reply in replies(turn)])
    trio.run(lived, path, model, turns, most)
    records, begun = records_of(path), False
    event(f"made shorter: {any(isinstance(each.event, CompactionEnd) for each in records)}")
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model])]) as log:
        for record in records:
            begun = begun or isinstance(record.event, RequestHeader)
            if isinstance(record.event, RequestSent) and begun:
                begun = False
                assert record.turn
                assert record.step
                request = log.session("s").request(record.turn, record.step, record.event.attempt)
                state = folded(records[: record.seq])
                assert request.head.system.startswith("host")
                assert_conversation(request.messages)
                sections = [m.section if isinstance(m, UserMessage) else "" for m in request.messages]
                says = {name: text for name, text in texts_given(state).items() if text}
                if WORKING in says:
                    assert sections[-1] == WORKING
                    assert says[WORKING] in request.messages[-1].text
                assert (WORKING in says) == bool(state.facts)
                if {WORKING, REMEMBERED} <= says.keys():
                    assert last(sections, REMEMBERED) < last(sections, WORKING)
    assert verified(path, model)


def last(sections: list[str], name: str) -> int:
    return max(place for place, section in enumerate(sections) if section == name)


async def lived(path: Path, model: FakeModel, turns: list[Turn], most: int | None) -> None:
    """Live through `turns`. A session may have `most` tokens in a request."""
    now = turns[0]

    async def switch(view: StepView) -> Switch | None:
        return Switch("fake:n") if now.switches and view.step == 2 else None

    async def failed(_: FailedRequest) -> Switch:
        return Switch("fake:o")

    bundle = Bundle(
        sections=[
            PromptSection(name="rules", rank=10, render=lambda: now.rules),
            PromptSection(name=REMEMBERED, rank=memory.RANK, render=lambda: now.remembered, kind="runtime"),
        ],
        tools=[Tool(body=look, effect="read")],
        hooks=[
            Hook(point="before_step", body=switch, name="switch", models=("fake:n",)),
            Hook(point="on_request_error", body=failed, name="failed", models=("fake:o",)),
        ],
        compactors=[Compactor(name="prunes", keep_steps=1)],
    )
    remaining, limits = list(turns), Limits(context_tokens=most)
    while remaining:
        now = remaining[0]
        extra = [Tool(body=other, effect="read")] if now.tool else []
        async with (
            opened(path, model, *extra, plugins=[bundle, working_memory]) as kernel,
            kernel.session("s", model="fake:m", system="host", limits=limits) as session,
        ):
            while remaining:
                now = remaining.pop(0)
                await session.followup("go on")
                await session.run()
                if now.reopens or (remaining and remaining[0].tool != now.tool):
                    break


async def other() -> str:
    """Do something else."""
    return "x"


def said(path: Path) -> list[str]:
    """The sections of all messages, "" for those of people."""
    return [each.event.section for each in records_of(path) if isinstance(each.event, UserMessage)]


async def test_a_section_that_is_gone_is_said_to_be_gone_before_what_stands_last(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([calls(("note", {"facts": {"sky": "blue"}})), words("Done.")])
    weather = PromptSection(name="weather", rank=1, render=lambda: "sunny", kind="runtime")
    for sections, tools in (([weather], [Tool(body=look)]), ([], [])):
        async with (
            opened(path, model, *tools, sections=sections, plugins=[working_memory]) as kernel,
            kernel.session("s", model="fake:m") as session,
        ):
            await session.followup("go")
            await session.run()
    assert said(path) == ["", "weather", WORKING, "", "weather", WORKING]


async def test_what_stands_last_already_is_not_said_again_for_another_model(tmp_path: Path) -> None:
    async def failed(request: FailedRequest) -> Switch:
        return Switch(f"fake:{request.attempt}")

    fails = [ProviderError("server", "no")]
    model = FakeModel([calls(("note", {"facts": {"sky": "blue"}})), Attempts((fails, fails, words("Done.")))])
    hook = Hook(point="on_request_error", body=failed, name="failed", models=("fake:1", "fake:2"))
    path = tmp_path / "a.db"
    async with (
        opened(path, model, plugins=[working_memory, Bundle(hooks=[hook])]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("go")
        await session.run()
    assert len([each for each in records_of(path) if isinstance(each.event, RequestHeader)]) == 3
    assert said(path) == ["", WORKING]
