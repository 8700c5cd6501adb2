"""`--verify`: how much of a session is checked before it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flightlog.core import snapshot
from support.damage import hide_damage

if TYPE_CHECKING:
    from flightlog_process import Shell


@pytest.fixture
def damaged(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell with session "s", a row of which was changed that no model is shown."""
    monkeypatch.setattr(snapshot, "is_due", lambda rows, _: rows >= 20)
    for number in range(6):
        shell.call("run", f"remark {number}", "--session", "s")
    hide_damage(shell.db, "s")
    return shell


def test_what_no_model_is_shown_is_checked_if_it_is_to_be(damaged: Shell) -> None:
    damaged.call("resume", "s")
    for command in (("run", "more", "--session", "s"), ("resume", "s")):
        refused = damaged.call(*command, "--verify", "full", code=3)
        assert "hash-chain" in refused.err
    assert "remark 7" in damaged.call("run", "remark 7", "--session", "s", "--verify", "shown").out


@pytest.mark.parametrize("command", [("run", "hi"), ("resume", "s"), ("work", "--until-idle")])
def test_there_is_no_third_way(shell: Shell, command: tuple[str, ...]) -> None:
    assert "'some' is not one of 'shown', 'full'" in shell.call(*command, "--verify", "some", code=2).err
