"""A stream that breaks off anywhere: what each kind of damage is called, and what the kernel makes of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import get_args

import pytest
import trio

from flightlog_hookspecs.errors import FailureKind
from flightlog_hookspecs.events import RequestFailed
from support.kernels import SOON, events_of
from support.wire_kernels import answers_of, asked, wired
from support.wire_providers import PROVIDERS, Provider
from support.wire_server import served

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

GARBAGE = b'data: {"type": "content_block_st\n\n'


@providers
def test_a_byte_that_is_damaged_anywhere_changes_words_at_most(provider: Provider) -> None:
    raw = b"".join(provider.frames(provider.short))
    for at in range(len(raw)):
        for damage in (b"\x00", b"\xff", b"\n", b'"', b"}"):
            outcome = provider.outcome([raw[:at] + damage + raw[at + 1 :]])
            if isinstance(outcome, str):
                assert outcome in get_args(FailureKind)
            else:
                assert outcome.finish == "stop"
                assert len(outcome.content) == 1


@providers
def test_an_error_at_any_frame_is_what_it_says(provider: Provider) -> None:
    whole = provider.frames(provider.short)
    outcomes = [provider.outcome([*whole[:at], provider.error_frame]) for at in range(len(whole) + 1)]
    complete = outcomes.index(provider.outcome(whole))
    assert set(outcomes[:complete]) == {"overloaded"}
    assert len(set(map(repr, outcomes[complete:]))) == 1, "what comes behind a complete answer does not count"


@providers
def test_garbage_at_any_frame_is_a_final_failure(provider: Provider) -> None:
    whole = provider.frames(provider.short)
    outcomes = [provider.outcome([*whole[:at], GARBAGE]) for at in range(len(whole) + 1)]
    assert set(map(str, outcomes[: outcomes.index(provider.outcome(whole))])) == {"protocol"}


@providers
async def test_a_broken_attempt_is_made_again_and_leaves_nothing_in_the_conversation(
    provider: Provider, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    wire = provider.wire([provider.full, provider.full, provider.short])
    broken = [True]
    wire.after = lambda frames: (frames[:-3], "reset") if broken and broken.pop() else (frames, "whole")
    async with served(wire) as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
    assert (turn.text, wire.refused) == (provider.short_text, [])
    assert [failed.failure for failed in events_of(path, RequestFailed)] == ["transport"]
    assert len(answers_of(path)) == 2


@providers
async def test_a_cancel_hangs_up(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.short])
    wire.after = lambda frames: (frames[: len(frames) // 2 + 1], "stall")
    async with (
        served(wire) as server,
        wired(tmp_path / "log.db", provider.plugin) as kernel,
        kernel.session("s", model=provider.at(server.url)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hello")
        nursery.start_soon(session.run)
        with trio.fail_after(60):
            async for record in session.events():
                if record.event.kind == "assistant/delta":
                    break
            session.cancel()
            await server.hung_up.wait()
    gc.collect()
