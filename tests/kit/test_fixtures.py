"""What the pytest plugin brings: fixtures for authors, which cost nothing until a test asks for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import flightlog
from flightlog import sync
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Attempts, Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import ToolResult, tool
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.retry import Retry


@tool(effect="read")
def look(at: str) -> str:
    """Look at something.

    Args:
        at: what to look at
    """
    return f"{at}: nothing to see"


def script() -> FakeModel:
    return FakeModel([calls(("look", {"at": "sky"})), words("Nothing.")])


def said(kernel: sync.Kernel) -> str:
    with kernel.session("s", model="fake:model") as session:
        session.followup("Look up.")
        return session.run().text


def test_a_plain_test_gets_a_kernel(kernel_with: KernelWith) -> None:
    model = script()
    assert said(kernel_with(Bundle(tools=[look], adapters=[model]))) == "Nothing."
    model.assert_all_played()


async def test_a_trio_test_gets_the_same(kernel_with: KernelWith) -> None:
    assert said(kernel_with(Bundle(tools=[look], adapters=[script()]))) == "Nothing."


@pytest.mark.parametrize("where", ["log_in_memory", "log_on_disk"])
async def test_a_kernel_of_ones_own_opens_at_either_path(where: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(where)
    assert not path.exists()
    plugin = Bundle(tools=[look], adapters=[script()])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="fake:model") as session,
    ):
        await session.followup("Look up.")
        assert (await session.run()).text == "Nothing."
    assert path.exists()


def test_called_again_it_is_a_restart_on_the_same_log(kernel_with: KernelWith) -> None:
    plugin = Bundle(tools=[look], adapters=[script()])
    first = kernel_with(plugin)
    first.mailbox("s").followup("Look up.")
    kernel = kernel_with(plugin)
    with pytest.raises(flightlog.errors.FlightlogError):
        first.mailbox("s").followup("Too late.")
    with kernel.session("s", model="fake:model") as session:
        assert session.run().text == "Nothing."
    assert [type(message) for message in kernel.read("s").messages()].count(ToolResult) == 1


def test_a_log_on_disk_is_left_for_a_look(kernel_with: KernelWith, log_on_disk: Path, tmp_path: Path) -> None:
    kernel_with(Bundle(adapters=[FakeModel([])]), path=log_on_disk).mailbox("s").followup("hello")
    assert log_on_disk.parent == tmp_path
    assert log_on_disk.exists()


def test_what_a_test_leaves_open_is_closed_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(kernel_with):\n    kernel_with().mailbox('s').followup('hello')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_collecting_with_the_plugin_loads_neither_kernel_nor_trio() -> None:
    code = (
        "import sys, flightlog.pytest_plugin\n"
        "heavy = {'trio', 'apsw', 'flightlog.api', 'flightlog.sync', 'flightlog.testing'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def played(kernel_with: KernelWith, replies: list[list[Cue] | Attempts], *plugins: object) -> FakeModel:
    model = FakeModel(replies)
    said(kernel_with(Bundle(tools=[look], adapters=[model]), *plugins))
    return model


def test_a_script_that_was_not_played_to_its_end_says_what_is_left(kernel_with: KernelWith) -> None:
    model = played(kernel_with, [words("Nothing."), words("More."), words("And more.")])
    with pytest.raises(AssertionError, match=r"model 'fake' .* end: reply 2; reply 3 of 3 \(1 requests were made\)"):
        model.assert_all_played()


def test_an_attempt_that_was_never_made_is_left_over(kernel_with: KernelWith) -> None:
    replies: list[list[Cue] | Attempts] = [Attempts(([ProviderError("server", "later")], words("Nothing.")))]
    with pytest.raises(AssertionError, match="reply 1, attempt 2 of 1"):
        played(kernel_with, list(replies)).assert_all_played()


def test_attempts_that_were_all_made_are_played(kernel_with: KernelWith) -> None:
    replies: list[list[Cue] | Attempts] = [Attempts(([ProviderError("server", "later")], words("Nothing.")))]
    played(kernel_with, replies, Retry(base_s=0, max_s=0)).assert_all_played()


def test_a_reply_that_raises_is_at_its_end_there(kernel_with: KernelWith) -> None:
    played(kernel_with, [[*words("Not")[:-1], ProviderError("auth", "no"), *words("hing.")]]).assert_all_played()
