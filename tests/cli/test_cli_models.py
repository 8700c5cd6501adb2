"""Real models from the command line: where they are, what goes wrong on the way, and a kill in the middle."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import pytest
import trio
from flightlog_process import Finished, Shell

from support import wire_chat
from support.wire_chat import ChatWire
from support.wire_providers import PROVIDERS, Provider
from support.wire_server import WireServer, served

KEY = "sk-secret-4711"
providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)


def keyed(shell: Shell, key: str = wire_chat.KEY, **variables: str) -> Shell:
    """The shell, with keys for all providers and no address but those that are given."""
    names = ("ANTHROPIC", "OPENAI", "DEEPSEEK")
    plain = {f"{name}_{what}": value for name in names for what, value in (("API_KEY", key), ("BASE_URL", ""))}
    return Shell(shell.folder, shell.variables | plain | variables)


async def ran(shell: Shell, *arguments: str, code: int = 0) -> Finished:
    """The command in a process of its own, while the server here answers it."""
    return await trio.to_thread.run_sync(partial(shell.run, *arguments, code=code))


def run_at(provider: Provider, server: WireServer, *more: str) -> list[str]:
    """A run of `provider` at the server."""
    model = f"{provider.name}:{provider.model}"
    return ["run", "hi", "--session", "s", "--model", model, "--base-url", server.url, *more]


@providers
async def test_a_model_is_where_base_url_says_and_stays_there(provider: Provider, shell: Shell) -> None:
    wire: Any = provider.wire([provider.short, provider.short])
    shell = keyed(shell, wire.key)
    async with served(wire) as server:
        assert (await ran(shell, *run_at(provider, server))).out.startswith("Hi.\n")
        assert (await ran(shell, "resume", "s", "again")).out.startswith("Hi.\n")
    assert (wire.refused, wire.answered) == ([], 2)
    assert shell.kinds("s").count("request/header") == 1
    (header,) = [row for row in shell.call("show", "s", "--json").json_lines if row["kind"] == "request/header"]
    assert header["data"]["head"]["model"] == f"{provider.model}?base_url={server.url}"


async def test_base_url_joins_the_other_options_of_the_model(shell: Shell) -> None:
    wire = ChatWire([([wire_chat.text("Hi.")], "stop")])
    async with served(wire) as server:
        model = ("--model", "openai-chat:gpt-test?temperature=0.5", "--base-url", f"{server.url}/a+b/v1")
        await ran(keyed(shell), "run", "hi", *model)
    assert (server.asked[0].path, server.asked[0].body["temperature"]) == ("/a+b/v1/chat/completions", 0.5)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ((), "--base-url goes with --model"),
        (("--model", "openai:m?base_url=http://x"), "names an address already; leave out one of the two"),
        (("--model", "openai:m?effort=low&base_url="), "names an address already; leave out one of the two"),
    ],
)
@pytest.mark.parametrize("command", [("run", "hi"), ("resume", "s")])
def test_an_address_without_its_model_or_a_second_one_is_wrong_usage(
    shell: Shell, command: tuple[str, ...], model: tuple[str, ...], says: str
) -> None:
    shell.call("run", "hello", "--session", "s")
    before = shell.kinds("s")
    assert says in shell.call(*command, *model, "--base-url", "http://127.0.0.1:9", code=2).complaint
    assert shell.kinds("s") == before


def failed(done: Finished) -> str:
    """Why the one turn failed: a line on stderr, in front of the one that says how to go on."""
    why, hint = done.err.splitlines()
    assert hint == "flightlog: To go on: flightlog resume s continue"
    assert "Traceback" not in done.out + done.err
    return why.removeprefix("flightlog: turn 1 ended as error ")


@pytest.mark.parametrize(
    ("model", "url", "says"),
    [
        ("scripted:echo", "http://127.0.0.1:9", "there is no option 'base_url' (there are none))"),
        ("scripted:say?text=x", "http://127.0.0.1:9", "there is no option 'base_url' (there are text))"),
        ("openai-chat:m", "127.0.0.1:9", "base_url must be an http or https address without a password in it"),
        ("openai-chat:m", "http://me:pass@x", "base_url must be an http or https address without a password in it"),
    ],
)
def test_an_address_that_the_adapter_does_not_take_is_one_line(shell: Shell, model: str, url: str, says: str) -> None:
    done = keyed(shell).run("run", "hi", "--session", "s", "--model", model, "--base-url", url, code=1)
    assert failed(done).startswith("(bad_request: ")
    assert says in failed(done)


def assert_secret(shell: Shell, done: Finished) -> None:
    """The key is neither in what was printed nor anywhere in the files of the log."""
    assert KEY not in done.out + done.err
    assert [path.name for path in shell.folder.iterdir() if KEY.encode() in path.read_bytes()] == []


@providers
async def test_a_wrong_key_is_one_line_that_names_the_variable_and_never_shows_it(
    provider: Provider, shell: Shell
) -> None:
    shell = keyed(shell, KEY)
    async with served(provider.wire([])) as server:
        done = await ran(shell, *run_at(provider, server), code=1)
    assert failed(done).startswith("(auth: ")
    assert failed(done).endswith(f"(HTTP 401); check the environment variable {provider.key_env})")
    assert_secret(shell, done)


@providers
def test_a_missing_key_is_one_line_that_names_the_variable(provider: Provider, shell: Shell) -> None:
    model = f"{provider.name}:{provider.model}"
    done = keyed(shell, "").run("run", "hi", "--session", "s", "--model", model, code=1)
    says = f"(auth: no API key for {provider.name}: set the environment variable {provider.key_env})"
    assert failed(done) == says


@providers
async def test_an_unknown_model_is_one_line_that_names_it(provider: Provider, shell: Shell) -> None:
    wire: Any = provider.wire([])
    async with served(wire) as server:
        model = ("--model", f"{provider.name}:made-up", "--base-url", server.url)
        done = await ran(keyed(shell, wire.key), "run", "hi", "--session", "s", *model, code=1)
    assert failed(done).startswith("(bad_request: ")
    assert failed(done).endswith("(HTTP 404); is 'made-up' a model of this provider, and the address right?)")


@providers
def test_a_missing_package_is_one_line_that_says_what_to_install(provider: Provider, shell: Shell) -> None:
    arguments = ["run", "hi", "--session", "s", "--model", f"{provider.name}:{provider.model}"]
    program = (
        f"import sys\nsys.modules[{provider.sdk!r}] = None\nfrom flightlog.cli import main\nsys.exit(main({arguments}))"
    )
    done = keyed(shell, KEY).python("-c", program, code=1)
    assert failed(done).startswith(f"(adapter: the package {provider.sdk!r} cannot be imported")
    assert failed(done).endswith(f"pip install 'flightlog[{provider.sdk}]')")
    assert_secret(shell, done)


def test_an_unknown_adapter_is_one_line_and_wrong_usage(shell: Shell) -> None:
    done = shell.run("run", "hi", "--model", "opnai:m", "--base-url", "http://127.0.0.1:9", code=2)
    assert done.complaint.startswith("flightlog: no adapter named 'opnai' (known: ")
    assert "openai-chat" in done.complaint
    assert done.out == ""
    assert shell.run("sessions", "--json").json == []


@pytest.mark.kill
@pytest.mark.parametrize("again", ["resume", "run"])
async def test_killed_between_what_a_tool_did_and_its_result_the_provider_accepts_the_conversation(
    shell: Shell, again: str
) -> None:
    """The write is done, its result is not in the log: it is not repeated, and the model is told so."""
    wire = ChatWire([
        ([wire_chat.call("append_line", '{"path": "notes.txt", "line": "paid"}', "call_1")], "tool_calls"),
        ([wire_chat.call("read_file", '{"path": "notes.txt"}', "call_2")], "tool_calls"),
        ([wire_chat.text("It was paid once.")], "stop"),
    ])  # fmt: skip
    shell = keyed(shell.with_plugin("gate", "gate_plugin"))
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    async with served(wire) as server:
        model = ("--model", "openai-chat:gpt-test", "--base-url", f"{server.url}/v1")
        with shell.held("run", "pay", "--session", "s", *model, "--workspace", ".") as held:
            assert await trio.to_thread.run_sync(gate.read_text) == "append_line"
            held.process.kill()
            await trio.to_thread.run_sync(held.finished)
        gate.unlink()
        assert (shell.folder / "notes.txt").read_text() == "paid\n"
        assert shell.kinds("s")[-1] == "tool/call"
        words = ("resume", "s", "go on") if again == "resume" else ("run", "go on", "--session", "s", *model)
        done = await ran(shell, *words, "--workspace", ".")
    assert "It was paid once." in done.out
    assert (wire.refused, wire.answered) == ([], 3)
    assert (shell.folder / "notes.txt").read_text() == "paid\n"
    first, told, *_ = [message for message in server.asked[1].body["messages"] if message["role"] != "user"]
    assert first["tool_calls"][0]["id"] == told["tool_call_id"] == "call_1"
    assert told["content"].startswith("[unknown] ")
    shell.run("verify", "s")


LEGS = {
    "type": "object",
    "properties": {"legs": {"type": "integer"}},
    "required": ["legs"],
    "additionalProperties": False,
}


def with_schema(shell: Shell, schema: Any = LEGS) -> Shell:
    (shell.folder / "schema.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return shell


@providers
async def test_a_run_with_a_schema_prints_the_checked_json_and_nothing_else(provider: Provider, shell: Shell) -> None:
    wire: Any = provider.wire([provider.says("Eight legs.")])
    wire.bound = '{"legs": 8}'
    async with served(wire) as server:
        done = await ran(keyed(with_schema(shell), wire.key), *run_at(provider, server, "--schema", "schema.json"))
    assert (done.json, done.out.count("\n"), done.err) == ({"legs": 8}, 1, "")
    assert wire.refused == []


def test_a_run_with_a_schema_prints_nothing_that_does_not_fit(shell: Shell) -> None:
    done = with_schema(shell).call("run", "eight", "--session", "s", "--schema", "schema.json", code=1)
    assert done.out == ""
    why, hint = done.err.splitlines()
    assert why.startswith("flightlog: turn 1 ended as error (invalid_output: the answer is not the JSON that was asked")
    assert hint == "flightlog: To go on: flightlog resume s continue --schema schema.json"


def test_the_json_of_every_turn_is_printed_on_a_line_of_its_own(shell: Shell) -> None:
    shell = with_schema(shell)
    shell.call("run", "hello", "--session", "other")
    shell.call("send", "s", '{"legs": 6}')
    out = shell.call("resume", "s", '```json\n{"legs":\n8}\n```', "--schema", "schema.json").out
    assert out == '{"legs": 6}\n{"legs": 8}\n'


def test_with_json_the_values_stand_in_the_result(shell: Shell) -> None:
    done = with_schema(shell).call("run", '{"legs": 8}', "--schema", "schema.json", "--json")
    assert done.json_lines[-1]["outputs"] == [{"legs": 8}]
    assert len(done.json_lines) > 5


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "--schema: schema.json is not JSON: "),
        ("[]", "--schema: schema.json: the schema of an output must be a JSON object"),
        ({"type": "no such type"}, "its schema is not a JSON Schema 2020-12: $.type: 'no such type'"),
        ({"$ref": "#/gone"}, "it refers to '#/gone', which is not in it"),
    ],
)
def test_a_file_that_holds_no_schema_is_wrong_usage_and_nothing_is_run(shell: Shell, schema: Any, says: str) -> None:
    assert says in with_schema(shell, schema).call("run", "hi", "--schema", "schema.json", code=2).complaint
    assert not shell.db.exists()


def test_a_schema_file_that_is_not_there_is_wrong_usage(shell: Shell) -> None:
    assert "'schema.json' does not exist" in shell.call("run", "hi", "--schema", "schema.json", code=2).complaint


def test_a_question_is_asked_on_stderr_where_stdout_is_for_the_json(asking: Shell) -> None:
    model = ("--model", "asking:m", "--schema", "schema.json")
    done = with_schema(asking).run("run", "pay", "--session", "s", *model, "--no-wait", code=1)
    assert done.out == ""
    assert "May pay run? flightlog approve s " in done.err
