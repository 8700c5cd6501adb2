"""Providers that fail for a while: what is tried again, what another provider takes over, and what the log shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from flightlog import Kernel
from flightlog_hookspecs import ToolResult
from flightlog_hookspecs.events import RequestFailed, RequestHeader, RequestRetry, StepStart
from flightlog_plugins.failover import Failover
from support.kernels import SOON, events_of, verified
from support.wire_anthropic import error_frame
from support.wire_kernels import answers_of, asked, messages_of, said, wired
from support.wire_providers import ANTHROPIC, CHAT, PROVIDERS, Provider
from support.wire_server import Answer, Asked, refusal, served

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)


@define
class Failing:
    """A provider's server that is given `instead` of an answer as long as there is any of it."""

    wire: Callable[[Asked], Answer]
    instead: list[Answer] = field(factory=list)

    def __call__(self, asked: Asked) -> Answer:
        return self.instead.pop(0) if self.instead else self.wire(asked)


def busy(status: int, **headers: str) -> Answer:
    return refusal(status, {"error": {"message": "later"}}, **headers)


def checked(path: Path, kernel: Kernel) -> int:
    """Verify the session, with the adapters of `kernel`."""
    return verified(path, *(registered.item for registered in kernel.registry.adapters.values()))


@providers
@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit"), (529, "overloaded"), (503, "overloaded")])
async def test_a_provider_that_is_busy_for_a_moment_costs_an_attempt_and_no_turn(
    provider: Provider, tmp_path: Path, status: int, kind: str
) -> None:
    path = tmp_path / "log.db"
    wire = provider.wire([provider.full, provider.short])
    failing = Failing(wire, [busy(status, retry_after_ms="5"), busy(status)])
    async with served(failing) as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
        assert checked(path, kernel)
    assert (turn.text, wire.refused) == (provider.short_text, [])
    assert [failed.failure for failed in events_of(path, RequestFailed)] == [kind, kind]
    assert [retry.delay_ms for retry in events_of(path, RequestRetry)] == [5, 0]
    assert len({asked.raw for asked in server.asked[:3]}) == 1, "the very same request"


@providers
async def test_a_provider_that_asks_for_too_long_a_wait_ends_the_turn_which_says_so(
    provider: Provider, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    failing = Failing(provider.wire([provider.short]), [busy(429, retry_after="900")])
    async with served(failing) as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
    assert (turn.code, turn.message) == ("rate_limit", "later (HTTP 429); the provider asks to wait 900 s")
    assert len(server.asked) == 1


@providers
async def test_an_error_in_mid_stream_leaves_nothing_of_its_attempt_in_the_step(
    provider: Provider, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    wire = provider.wire([provider.full, provider.full, provider.short])
    broken = [True]
    wire.after = lambda frames: (
        ([*frames[: len(frames) // 2], provider.error_frame], "whole") if broken and broken.pop() else (frames, "whole")
    )
    async with served(wire) as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
        assert checked(path, kernel)
    assert (turn.text, wire.refused) == (provider.short_text, [])
    assert [(failed.attempt, failed.failure) for failed in events_of(path, RequestFailed)] == [(1, "overloaded")]
    assert len(events_of(path, StepStart)) == 2
    whole, last = answers_of(path)
    assert (whole.attempt, last.attempt) == (2, 1)
    expected = provider.outcome([b"".join(provider.frames(provider.full))])
    assert not isinstance(expected, str)
    assert whole.text == expected.text
    assert server.asked[0].raw == server.asked[1].raw


@pytest.mark.parametrize(
    ("first", "second"), [(ANTHROPIC, CHAT), (CHAT, ANTHROPIC), (ANTHROPIC, ANTHROPIC)], ids=lambda one: one.name
)
async def test_another_provider_takes_over_behind_tool_calls_and_the_first_comes_back(
    first: Provider, second: Provider, tmp_path: Path
) -> None:
    """Four steps in two turns: the first provider calls tools, fails, rests, and calls tools again."""
    path, now = tmp_path / "log.db", [0.0]
    if second is first:
        second = evolve(second, model="claude-other")
    wires: list[Any] = [first.wire([first.full, first.full, first.short]), second.wire([second.full, second.short])]
    one, other = Failing(wires[0]), Failing(wires[1])
    async with served(one) as a, served(other) as b:
        models = [first.at(a.url), second.at(b.url)]
        failover = Failover(models, attempts=2, rest_s=300, retry=SOON, now=lambda: now[0])
        plugins = {provider.name: provider.plugin for provider in (first, second)}.values()

        def fails_behind_the_calls(frames: list[bytes]) -> Any:
            one.instead = [busy(529), busy(529)]
            wires[0].after = lambda frames: (frames, "whole")
            return frames, "whole"

        wires[0].after = fails_behind_the_calls
        async with wired(path, *plugins, failover) as kernel, kernel.session("s", model=models[0]) as session:
            turn = await said(session, "look around")
            assert (turn.reason, turn.text) == ("completed", second.short_text)
            assert len(a.asked) == 3, "one answer, and two attempts in vain"
            now[0] = 299.0
            assert (await said(session, "still there?")).text == "done"
            assert len(a.asked) == 3, "it rests"
            now[0] = 300.0
            turn = await said(session, "and now?")
            assert (turn.reason, turn.text) == ("completed", first.short_text)
            assert checked(path, kernel)
    assert [wire.refused for wire in wires] == [[], []]
    heads = [f"{header.head.adapter}:{header.head.model}" for header in events_of(path, RequestHeader)]
    # The second turn begins as the session would have it, and then the plugin says otherwise.
    assert heads == [models[0], models[1], models[0], models[1], models[0]]
    assert [(retry.attempt, retry.model) for retry in events_of(path, RequestRetry)] == [(2, ""), (3, models[1])]
    outcomes = [message.outcome for message in messages_of(path) if isinstance(message, ToolResult)]
    assert outcomes == ["ok"] * 6


async def test_an_error_in_mid_stream_may_be_taken_over_too(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    first, second = ANTHROPIC.wire([ANTHROPIC.full] * 9), CHAT.wire([CHAT.full, CHAT.short])
    first.after = lambda frames: ([*frames[:6], error_frame("overloaded_error", "planted")], "whole")
    async with served(first) as a, served(second) as b:
        models = [ANTHROPIC.at(a.url), CHAT.at(b.url)]
        failover = Failover(models, attempts=1, retry=SOON)
        async with wired(path, ANTHROPIC.plugin, CHAT.plugin, failover) as kernel:
            turn = await asked(kernel, models[0])
            assert checked(path, kernel)
    assert (turn.reason, turn.text, second.refused) == ("completed", CHAT.short_text, [])
    assert len(a.asked) == 1
    assert len(answers_of(path)) == 2, "nothing of the attempt that broke off"
