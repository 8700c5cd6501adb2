from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, HookCase, checks
from flightlog_hookspecs import ProposedCall, ToolResult, tool

from flightlog_freeze import freeze

FILE = Path(tempfile.mkdtemp(prefix="freeze-")) / "freeze.json"
FILE.write_text('{"deploy": "it is Friday"}')


def proposed(name: str) -> ProposedCall:
    return ProposedCall(
        session="s", turn=1, step=1, position=0, call_id="c", name=name, arguments="{}", effect="external"
    )


@contextmanager
def unreadable() -> Iterator[None]:
    kept = FILE.read_text()
    FILE.write_text("{")
    yield
    FILE.write_text(kept)


CASE = HookCase(hook=freeze(FILE), views=[proposed("deploy"), proposed("look")], broken=unreadable)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_hooks(check: Check) -> None:
    check()


@tool(effect="external")
def deploy(version: str) -> str:
    """Put a version into service.

    Args:
        version: which one
    """
    return f"{version} is in service"


@pytest.mark.parametrize(("text", "outcome"), [("{}", "ok"), ('{"deploy": "it is Friday"}', "denied"), ("{", "denied")])
def test_it_is_asked_once_it_is_installed(
    text: str, outcome: str, kernel_with: KernelWith, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frozen.json").write_text(text)
    monkeypatch.setenv("FLIGHTLOG_FREEZE", str(tmp_path / "frozen.json"))
    model = FakeModel([calls(("deploy", {"version": "7"})), words("So be it.")])
    kernel = kernel_with(Bundle(adapters=[model], tools=[deploy]), discover=["freeze"])
    with kernel.session("s", model="fake:model") as session:
        session.followup("Deploy it.")
        session.run()
    (result,) = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert result.outcome == outcome
    model.assert_all_played()
