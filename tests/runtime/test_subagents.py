"""Subagents: a call that waits for a child session, and what the child may do."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import flightlog
from flightlog import Limits
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Deny, Hook, ProposedCall, Subagent, Tool, ToolContext, Verdict
from flightlog_hookspecs.errors import PluginError, ProviderError
from flightlog_hookspecs.events import (
    AssistantMessage,
    SessionCreated,
    SubagentSettled,
    SubagentSpawned,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.family import Family, child_of
from support.kernels import events_of, kinds_of, records_of

CALL = [calls(("scout", {"task": "look around"})), words("I see.")]


async def look() -> str:
    """Look."""
    return "sky"


async def test_the_call_gives_the_child_its_task_and_its_result_is_the_last_words(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, [[*words("I will look."), *calls(("look", {}))], words("Blue sky.")], tools=[Tool(body=look)])
    turn = await family.run("go")
    assert (turn.reason, turn.text) == ("completed", "I see.")
    (result,) = events_of(family.path, ToolResult)
    assert (result.outcome, result.text) == ("ok", "Blue sky.")
    child = child_of(family.path)
    assert [m.text for m in events_of(family.path, UserMessage, child)] == ["look around"]
    assert [end.reason for end in events_of(family.path, TurnEnd, child)] == ["completed"]


async def test_the_child_is_named_in_the_log_before_it_exists_and_settled_before_the_result(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, [words("Blue.")])
    await family.run("go")
    kinds = kinds_of(family.path)
    places = [kinds.index(kind) for kind in ("tool/call", "subagent/spawned", "subagent/settled", "tool/result")]
    assert places == sorted(places)
    (spawned,) = events_of(family.path, SubagentSpawned)
    (settled,) = events_of(family.path, SubagentSettled)
    assert (spawned.subagent, spawned.depth, spawned.task) == ("scout", 1, "look around")
    assert (settled.child, settled.invocation_id) == (spawned.child, spawned.invocation_id)
    assert (settled.reason, settled.result) == ("completed", "Blue.")
    (created,) = events_of(family.path, SessionCreated, spawned.child)
    (parent,) = events_of(family.path, SessionCreated)
    assert (created.parent_session, created.parent_uid, created.depth) == ("s", parent.uid, 1)
    assert spawned.child.startswith("s/scout-")
