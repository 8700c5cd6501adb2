"""Secrets do not reach a byte of the log, from wherever they come; without the plugin they do."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.testing import Attempts, Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    Append,
    Ask,
    Continue,
    Deny,
    Fail,
    Hook,
    Point,
    PromptSection,
    Redaction,
    Replace,
    TextBlock,
    Tool,
    ToolOutput,
    Veto,
)
from flightlog_hookspecs.errors import PluginError, ProviderError, ToolError, UsageError
from flightlog_hookspecs.events import AssistantMessage, PluginFault, ToolCall, ToolResult
from flightlog_plugins import secrets
from flightlog_plugins.secrets import Secrets
from flightlog_plugins.shell import Shell
from flightlog_plugins.test_suite import TestSuite
from support import worker_tools
from support.kernels import SOON, events_of, records_of, verified

CANARY = 'c4n4ry"\\/+ é'
VARIABLE = "FLIGHTLOG_TEST_API_KEY"


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the environment, with everything in it that encodings change."""
    monkeypatch.setenv(VARIABLE, CANARY)


def traces(folder: Path) -> list[str]:
    """Where a byte of the folder's files gives the canary away; its middle survives every encoding but base64."""
    shapes = [b"c4n4ry", base64.b64encode(CANARY.encode()).rstrip(b"=")]
    return [path.name for path in folder.iterdir() if any(shape in path.read_bytes() for shape in shapes)]


class Raises(Exception):
    """An error whose text is the canary."""

    def __str__(self) -> str:
        return f"at {os.environ[VARIABLE]}"


def raising() -> str:
    try:
        return dict[str, str]()[CANARY]
    except KeyError as error:
        raise Raises from error


def tool_error() -> str:
    raise ToolError(f"no such host: {CANARY}")


def grouped() -> str:
    raise ExceptionGroup(CANARY, [ValueError(CANARY), Raises()])


def not_json() -> object:
    return {CANARY: {CANARY: float("nan")}}


def text() -> str:
    return f"KEY={CANARY}\n"


def as_bytes() -> bytes:
    return b"\xff\xfe" + f"KEY={CANARY}".encode() + b"\0"


def as_json() -> object:
    return {"key": CANARY, CANARY: [CANARY, CANARY + "x"]}


def encoded() -> str:
    shapes = [json.dumps(CANARY), repr(CANARY), quote(CANARY), quote(CANARY, safe="")]
    return " ".join([*shapes, base64.b64encode(CANARY.encode()).decode()])


def spilled() -> str:
    return f"{'x' * 5_000_000}{CANARY}{'y' * 100_000}{CANARY}"


def spilled_bytes() -> bytes:
    return b"\xff" * 200_000 + CANARY.encode() + b"\xff" * 200_000


def at_the_cut() -> str:
    """The canary lies across the place where the excerpt ends."""
    return "".join(f"{'x' * 31}{CANARY}" for _ in range(2000))


def in_pieces() -> ToolOutput:
    return ToolOutput(content=tuple(TextBlock(text=char) for char in f"KEY={CANARY}!"))


TOOLS = [raising, tool_error, grouped, not_json, text, as_bytes, as_json, encoded, spilled, spilled_bytes, at_the_cut]
TOOLS += [in_pieces]


def tool_of(body: Callable[..., object]) -> Tool:
    """`body` as a tool."""
    return Tool(body=body, description="Do it.", effect="read")


def hook_of(point: Point, answer: object) -> Hook:
    """A hook that gives an answer, or raises it."""

    def body(view: object) -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return Hook(point=point, body=body, name="leaky")


def section_raises() -> str:
    raise Raises


class Cannot(FakeModel):
    """An adapter that cannot encode what it is given."""

    def encode(self, part: Any) -> bytes:
        raise Raises


class Case(NamedTuple):
    """A way in which a secret comes to the log."""

    plugin: Bundle
    model: FakeModel
    reason: str = "completed"
    system: str = ""


def plain() -> FakeModel:
    return FakeModel([calls(("text", {})), words("done")], name="fake")


def failing(*errors: BaseException) -> FakeModel:
    return FakeModel([Attempts(tuple([*words("so"), error] for error in errors))])


BODY = f'{{"error": "invalid key {json.dumps(CANARY)[1:-1]}", "headers": {{"Authorization": "Bearer {CANARY}"}}}}'

CASES: dict[str, Callable[[], Case]] = {
    **{
        body.__name__: lambda body=body: Case(Bundle(tools=[tool_of(body)]), FakeModel([calls((body.__name__, {}))]))
        for body in TOOLS
    },
    "process": lambda: Case(
        Bundle(tools=[Tool(body=worker_tools.environment, description="Do it.", isolation="process")]),
        FakeModel([calls(("environment", {"name": VARIABLE}))]),
    ),
    "hook raises": lambda: Case(Bundle(hooks=[hook_of("before_step", Raises())]), plain(), "blocked"),
    "hook returns nonsense": lambda: Case(Bundle(hooks=[hook_of("before_step", CANARY)]), plain(), "blocked"),
    "observer raises": lambda: Case(Bundle(hooks=[hook_of("event_committed", Raises())]), plain()),
    "veto": lambda: Case(Bundle(hooks=[hook_of("before_request", Veto(CANARY))]), plain(), "blocked"),
    "deny": lambda: Case(Bundle(hooks=[hook_of("before_tool", Deny(CANARY))], tools=[tool_of(text)]), plain()),
    "ask": lambda: Case(Bundle(hooks=[hook_of("before_tool", Ask(CANARY))], tools=[tool_of(text)]), plain()),
    "append": lambda: Case(Bundle(hooks=[hook_of("before_step", Append(CANARY))]), plain()),
    "replace": lambda: Case(
        Bundle(hooks=[hook_of("after_tool", Replace(ToolOutput(content=CANARY)))], tools=[tool_of(text)]), plain()
    ),
    "continue": lambda: Case(Bundle(hooks=[once(Continue(CANARY))]), plain()),
    "fail": lambda: Case(Bundle(hooks=[hook_of("turn_stopping", Fail(CANARY, CANARY))]), plain(), "error"),
    "retry hook raises": lambda: Case(
        Bundle(hooks=[hook_of("on_request_error", Raises())]), failing(ProviderError("auth", "no")), "error"
    ),
    "static section": lambda: Case(Bundle(sections=[PromptSection(name="s", rank=1, render=text)]), plain()),
    "runtime section": lambda: Case(
        Bundle(sections=[PromptSection(name="s", rank=1, render=text, kind="runtime")]), plain()
    ),
    "section raises": lambda: Case(Bundle(sections=[PromptSection(name="s", rank=1, render=section_raises)]), plain()),
    "system text": lambda: Case(Bundle(), plain(), system=f"Use {CANARY}."),
    "adapter raises": lambda: Case(Bundle(), failing(Raises()), "error"),
    "provider's body and headers": lambda: Case(Bundle(), failing(ProviderError("auth", BODY)), "error"),
    "provider, tried again": lambda: Case(
        Bundle(hooks=[hook_of("on_request_error", None)]),
        failing(*[ProviderError("auth", BODY, retryable=True)] * 3),
        "error",
    ),
    "adapter cannot encode": lambda: Case(Bundle(), Cannot([]), "error"),
}


def once(answer: Continue) -> Hook:
    """A hook that keeps a turn from stopping once."""
    left = [answer]
    return Hook(point="turn_stopping", body=lambda view: left.pop() if left else None, name="leaky")


async def run(folder: Path, case: Case, *plugins: object) -> list[str]:
    """Run a turn; returns what gives the canary away while the log is open and once it is closed."""
    path = folder / "a.db"
    everything: Sequence[object] = [*plugins, case.plugin, Bundle(adapters=[case.model]), SOON]
    limits = Limits(attempts_per_step=2)
    async with flightlog.open_kernel(path, discover=False, plugins=everything) as kernel:
        async with kernel.session("s", model="fake:m", system=case.system, limits=limits) as session:
            await session.followup("hi")
            turn = await session.run()
            assert turn is not None
            assert turn.reason == case.reason
            if any(hook.point == "event_committed" for hook in case.plugin.hooks):
                async for record in session.events():
                    if isinstance(record.event, PluginFault):
                        break
        found = traces(folder)
    if not isinstance(case.model, Cannot):
        assert verified(path, case.model), "what the model was sent is what the log says"
    return found + traces(folder)


@pytest.mark.parametrize("name", CASES)
async def test_a_secret_reaches_no_byte_of_the_log(tmp_path: Path, name: str) -> None:
    case = CASES[name]()
    assert await run(tmp_path, case, Secrets()) == []
    assert not any(b"c4n4ry" in part for sent in case.model.requests for part in sent)
    if name != "spilled_bytes":
        assert f"[redacted {VARIABLE}]" in str(records_of(tmp_path / "a.db"))


@pytest.mark.parametrize("name", CASES)
async def test_without_the_plugin_it_does(tmp_path: Path, name: str) -> None:
    assert await run(tmp_path, CASES[name]())


async def test_what_the_model_said_stays_word_for_word(tmp_path: Path) -> None:
    """Its words, and the arguments that it gave, are sent back to it as they were."""
    seen: list[str] = []

    def use(key: str) -> str:
        """Use a key."""
        seen.append(key)
        return key

    said = calls(("use", {"key": CANARY}))
    model = FakeModel([[*words(f"I take {CANARY}.", index=0), *said]])
    case = Case(Bundle(tools=[Tool(body=use)]), model)
    assert await run(tmp_path, case, Secrets())
    assert seen == [CANARY]
    path = tmp_path / "a.db"
    assert events_of(path, AssistantMessage)[0].text == f"I take {CANARY}."
    assert json.loads(events_of(path, ToolCall)[0].arguments) == {"key": CANARY}
    assert events_of(path, ToolResult)[0].text == f"[redacted {VARIABLE}]"


async def test_guards_judge_the_arguments_that_the_call_will_run_with(tmp_path: Path) -> None:
    seen: list[str] = []
    guard = Hook(point="before_tool", body=lambda call: seen.append(call.arguments), name="looks")
    model = FakeModel([calls(("text", {"x": CANARY}))])

    def used(x: str) -> str:
        """Use it."""
        return x

    tool = Tool(body=used, name="text")
    await run(tmp_path, Case(Bundle(hooks=[guard], tools=[tool]), model), Secrets())
    assert json.loads(seen[0]) == {"x": CANARY}


@pytest.mark.parametrize(
    "body", [lambda text: 1 / 0, lambda text: None, lambda text: (_ for _ in ()).throw(SystemExit(CANARY))]
)
async def test_a_redaction_that_fails_withholds_the_text(tmp_path: Path, body: Callable[[str], str]) -> None:
    broken = Bundle(redactions=[Redaction(name="broken", body=body)])
    for name in ("text", "as_bytes", "in_pieces", "veto", "section raises", "provider's body and headers"):
        folder = tmp_path / name.replace(" ", "")
        folder.mkdir()
        assert await run(folder, CASES[name](), broken) == []
        assert "withheld" in str(records_of(folder / "a.db"))


async def test_redactions_of_a_session_come_behind_those_of_its_kernel_and_go_with_it(tmp_path: Path) -> None:
    def swap(old: str, new: str) -> Bundle:
        return Bundle(redactions=[Redaction(name=new, body=lambda text: text.replace(old, new))])

    model = FakeModel([calls(("one", {})), words("."), calls(("one", {}))])
    tool = Tool(body=lambda: "one", name="one", description="Say one.", effect="read")
    plugins = [Bundle(adapters=[model], tools=[tool]), swap("one", "two")]
    async with (
        flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=plugins) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        async with session.register(swap("two", "three")):
            await session.followup("hi")
            await session.run()
        await session.followup("hi")
        await session.run()
    assert [result.text for result in events_of(tmp_path / "a.db", ToolResult)] == ["three", "two"]


@pytest.mark.parametrize("wrong", [lambda: "x", Redaction(name="", body=str), Redaction(name="x", body=lambda: "")])
async def test_what_is_no_redaction_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(PluginError, match="redaction"):
        async with flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[Bundle(redactions=[wrong])]):
            pass


def test_variables_are_known_by_their_names_and_read_again_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets()
    for name in ("db_password", "GITHUB_TOKEN", "MY_SECRET_THING"):
        monkeypatch.setenv(name, f"value of {name}")
        assert secrets.redact(f"a value of {name}.") == f"a [redacted {name}]."
    monkeypatch.setenv("HARMLESS", "harmless value")
    monkeypatch.setenv("SHORT_KEY", "1234567")
    assert secrets.redact("harmless value 1234567") == "harmless value 1234567"
    monkeypatch.delenv("GITHUB_TOKEN")
    assert secrets.redact("value of GITHUB_TOKEN") == "[redacted GITHUB_TOKEN]"


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefghijkl")
    assert Secrets().redact("abcdefghijkl abcdefgh") == "[redacted B_KEY] [redacted A_KEY]"


@pytest.mark.parametrize("plugin", [Shell, partial(TestSuite, command=("true",))])
def test_secrets_that_commands_are_given_are_redacted_and_nothing_else(
    plugin: Callable[..., Shell | TestSuite],
) -> None:
    found: list[Redaction] = []
    plugin(env={"A_TOKEN": "Bearer abcdefghi", "COLOUR": "ultramarine"}).register_redactions(found.append)
    (redaction,) = found
    assert redaction.body("Bearer abcdefghi, abcdefghi, ultramarine") == "[redacted], [redacted], ultramarine"


@pytest.mark.parametrize("plugin", [Shell, partial(TestSuite, command=("true",))])
def test_without_secrets_commands_need_no_redaction(plugin: Callable[..., Shell | TestSuite]) -> None:
    found: list[Redaction] = []
    plugin(env={"COLOUR": "ultramarine"}).register_redactions(found.append)
    assert not found


def test_a_new_value_is_redacted_also_while_another_thread_is_still_learning_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redactor, others = Secrets(), list[str]()
    forms_of = secrets._forms_of

    def forms(value: str) -> Any:
        if not others:  # as if another thread came in right now
            others.append("")
            others.append(redactor.redact("abcdefgh"))
        return forms_of(value)

    monkeypatch.setattr(secrets, "_forms_of", forms)
    monkeypatch.setenv("A_KEY", "abcdefgh")
    assert redactor.redact("abcdefgh") == "[redacted A_KEY]"
    assert others == ["", "[redacted A_KEY]"]


def test_values_and_patterns_are_redacted_too() -> None:
    secrets = Secrets(env=(), values=["hush"], patterns=[r"sk-\w+"])
    assert secrets.redact(f"hush sk-123 {CANARY}") == f"[redacted] [redacted] {CANARY}"
    assert "hush" not in repr(secrets)


@pytest.mark.parametrize(
    "options",
    [{"values": ["abc"]}, {"values": [""]}, {"values": [7]}, {"patterns": ["("]}, {"patterns": ["x*"]}, {"env": [7]}],
)
def test_what_would_redact_everything_or_nothing_is_refused_without_being_shown(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        Secrets(**options)
    assert "abc" not in str(refused.value)


@given(value=st.text(min_size=8, max_size=20), around=st.text(max_size=5))
def test_no_value_survives_in_any_text_around_it(value: str, around: str) -> None:
    value = value.encode(errors="replace").decode()
    secrets = Secrets(env=(), values=[value])
    for text in (around + value + around, json.dumps(value), repr(value), quote(value)):
        assert value not in secrets.redact(text)
