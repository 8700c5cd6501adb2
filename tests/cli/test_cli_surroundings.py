"""Where the log stands by default, what the help says, what is missing, and who reads what we write."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import trio
from click.shell_completion import ShellComplete
from flightlog_process import HERE, Shell

import flightlog
from flightlog.cli.app import flightlog as group
from flightlog.cli.commands import COMMANDS
from flightlog_plugins import scripted

KERNEL = HERE.parents[1] / "kernel" / "flightlog"
BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize("module", ["click", "rich", "platformdirs"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(shell: Shell, module: str) -> None:
    program = BLOCKED.format(blocked={module}) + "from flightlog.cli import main\nsys.exit(main(['sessions']))"
    done = shell.python("-c", program, code=2)
    assert done.complaint == f"flightlog: the command line needs {module}: pip install 'flightlog[cli]'"
    assert done.out == ""


@pytest.mark.parametrize("module", ["click", "rich", "flightlog.cli.app", "flightlog.cli.show", "trio", "apsw"])
def test_an_interrupt_while_it_starts_is_one_line(shell: Shell, module: str) -> None:
    program = (
        BLOCKED.format(blocked={module})
        .replace('name.partition(".")[0]', "name")
        .replace("ModuleNotFoundError", "KeyboardInterrupt")
        .replace(", name=name", "")
        + "from flightlog.cli import main\nsys.exit(main(['sessions']))"
    )
    done = shell.python("-c", program, code=1)
    assert (done.err.strip(), done.out) == ("flightlog: interrupted", "")


def test_a_broken_install_of_something_else_is_not_taken_for_a_missing_extra(shell: Shell) -> None:
    program = BLOCKED.format(blocked={"trio"}) + "from flightlog.cli import main\nsys.exit(main(['sessions']))"
    assert shell.python("-c", program, code=1).complaint == "flightlog: ModuleNotFoundError: No module named 'trio'"


def test_nothing_but_the_command_line_needs_the_extra(shell: Shell) -> None:
    parts = [path.relative_to(KERNEL.parent).with_suffix("").parts for path in KERNEL.rglob("*.py")]
    names = [".".join(part) for part in parts if "cli" not in part[1:2] and part[-1] not in ("__init__", "tool_worker")]
    assert len(names) > 20
    program = BLOCKED.format(blocked={"click", "rich", "platformdirs"}) + (
        f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
        "import flightlog_plugins.scripted, flightlog_plugins.files"
    )
    shell.python("-c", program)


def every_command(group: click.Group, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, *before, name)


def test_every_command_says_what_it_does_and_every_option_what_it_is_for(shell: Shell) -> None:
    assert set(COMMANDS) == {
        "run",
        "resume",
        "send",
        "approve",
        "cancel",
        "sessions",
        "show",
        "tail",
        "query",
        "verify",
        "fork",
        "purge",
        "plugins",
        "fuzz",
        "repair",
        "export",
        "import",
        "backup",
        "demo",
        "task",
        "work",
        "timer",
    }
    for names, command in every_command(group):
        overview = shell.call(*names[:-1], "--help").out
        assert re.search(rf"^  {names[-1]} +\w", overview, re.MULTILINE)
        text = shell.call(*names, "--help").out
        unbroken = re.sub(r"\s+", "", text)
        assert isinstance(command, click.Group) or "--json" in text
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{names} {parameter.opts}"
                assert all(option in text for option in parameter.opts)
            else:
                assert parameter.make_metavar(click.Context(command)) in unbroken
    assert all(len(line) <= 80 for line in overview.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_has_the_line_that_the_command_has_for_itself(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert (command.name, command.get_short_help_str(limit=200)) == (name, COMMANDS[name].gist)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["frobnicate"], []])
def test_what_needs_no_log_loads_no_kernel(words: list[str], shell: Shell) -> None:
    program = f"import sys; from flightlog.cli.app import run; run({words!r}); print([*sys.modules], file=sys.stderr)"
    loaded = shell.python("-c", program).err
    assert "'flightlog.cli.commands'" in loaded
    assert not [name for name in ("trio", "apsw", "attr", "flightlog.api") if f"'{name}'" in loaded]


def test_a_shell_completes_commands_and_options_without_loading_them() -> None:
    def completed(*words: str) -> list[str]:
        found = ShellComplete(group, {}, "flightlog", "_FLIGHTLOG_COMPLETE").get_completions([*words[:-1]], words[-1])
        return [item.value for item in found]

    assert completed("se") == ["send", "sessions"]
    assert completed("--v") == ["--version"]
    assert "--limit" in completed("sessions", "--l")


def test_a_shell_is_told_how_to_complete_in_peace(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FLIGHTLOG_COMPLETE", "zsh_source")
    told = shell.run()
    assert told.out.startswith("#compdef flightlog\n")
    monkeypatch.setenv("_FLIGHTLOG_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", "flightlog sess")
    monkeypatch.setenv("COMP_CWORD", "1")
    completed = shell.run()
    assert completed.out == "plain\nsessions\nList the sessions.\n"
    assert (told.err, completed.err) == ("", "")


def test_the_version_is_the_packages(shell: Shell) -> None:
    from flightlog import __version__

    assert shell.run("--version").out == f"flightlog {__version__}\n"


def test_the_entry_point_is_this_command() -> None:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="flightlog")
    assert entry.value == "flightlog.cli:main"


def test_the_default_log_stands_in_the_users_data_folder_for_the_owner_alone(shell: Shell) -> None:
    home = Shell(shell.folder, {"FLIGHTLOG_DB": "", "XDG_DATA_HOME": str(shell.folder / "data")})
    assert home.call("sessions", code=2).complaint.endswith("`flightlog run` creates it, --db names another.")
    assert not (shell.folder / "data").exists()
    home.call("run", "hello")
    folder = shell.folder / "data" / "flightlog"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "agent.db").stat().st_mode) == 0o600
    assert len(home.call("sessions", "--json").json) == 1


def test_the_option_overrides_the_variable_which_overrides_the_default(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "variable")
    shell.call("run", "hello", "--session", "option", "--db", "other.db")
    assert [entry["session"] for entry in shell.call("sessions", "--json").json] == ["variable"]
    assert [entry["session"] for entry in shell.call("sessions", "--json", "--db", "other.db").json] == ["option"]


def path_parameters() -> Iterator[tuple[str, ...]]:
    """Each parameter of each command that is a path, as the words before its value."""
    for names, command in every_command(group):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                before = () if parameter.name != "file" or names != ("export",) else ("s",)
                yield (*names, *(parameter.opts[:1] if isinstance(parameter, click.Option) else before))


@pytest.mark.parametrize("words", [*path_parameters()], ids=" ".join)
def test_an_empty_path_stands_for_no_default(shell: Shell, words: tuple[str, ...]) -> None:
    home = Shell(shell.folder, {"FLIGHTLOG_DB": "", "XDG_DATA_HOME": str(shell.folder / "data")})
    home.call("run", "hello", "--session", "s")
    (log,) = (shell.folder / "data").rglob("agent.db")
    before = log.read_bytes()
    assert "Invalid value for" in home.call(*words, "", code=2).complaint
    assert (log.read_bytes(), sorted(path.name for path in shell.folder.iterdir())) == (before, ["data"])


@pytest.mark.parametrize("command", [("show", "s", "--json"), ("show", "s", "--deltas"), ("export", "s")], ids=" ".join)
def test_a_reader_that_goes_away_ends_reading_without_a_word(crowded: Shell, command: tuple[str, ...]) -> None:
    with crowded.held(*command) as held:
        assert held.process.stdout is not None
        held.process.stdout.readline()
        held.process.stdout.close()
        assert held.process.stderr is not None
        assert held.process.stderr.read() == ""
        assert held.process.wait() == 0


@pytest.mark.parametrize(
    "command",
    [
        *[("--help",), ("--version",), ("show", "--help"), ("sessions",), ("show", "s"), ("tail", "s"), ("verify",)],
        *[("export", "s"), ("query", "SELECT 1"), ("query", "SELECT 1", "--json"), ("plugins",), ("task", "list")],
    ],
    ids=" ".join,
)
def test_a_reader_that_was_never_there_is_no_error(crowded: Shell, command: tuple[str, ...]) -> None:
    program = (
        "import os, subprocess, sys\n"
        "ours, theirs = os.pipe()\n"
        "os.close(ours)\n"
        f"done = subprocess.run({[sys.executable, '-m', 'flightlog', *command]!r}, stdout=theirs)\n"
        "sys.exit(done.returncode)"
    )
    assert crowded.python("-c", program).err == ""


def test_a_broken_pipe_that_is_not_ours_is_an_error(shell: Shell) -> None:
    planted = (
        "import sys; from flightlog.cli import app, plugins\n"
        "def broken(**_): raise BrokenPipeError(32, 'Broken pipe', 'elsewhere')\n"
        "plugins.load_plugins = broken; sys.exit(app.run(['plugins']))"
    )
    assert shell.python("-c", planted, code=1).complaint == "flightlog: elsewhere: Broken pipe"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell whose session "s" prints more than a pipe holds."""
    shell = Shell(tmp_path_factory.mktemp("crowded"))

    async def talk() -> None:
        async with flightlog.open_kernel(shell.db) as kernel, kernel.session("s") as session:
            for _ in range(40):
                await session.followup("word " * 400)
            await session.run()

    trio.run(talk)
    return shell


def test_a_reader_that_goes_away_does_not_cost_the_run(shell: Shell) -> None:
    model = "scripted:count?to=300&chunk=1&pace_ms=1"
    with shell.held("run", "count", "--session", "s", "--model", model) as held:
        held.lines_until("1\n")
        assert held.process.stdout is not None
        held.process.stdout.close()
        assert held.process.stderr is not None
        assert held.process.stderr.read() == ""
        assert held.process.wait() == 0
    assert shell.call("sessions", "--json").json[0]["last_reason"] == "completed"


def test_closed_streams_are_no_error(shell: Shell) -> None:
    program = (
        "import os, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'flightlog.cli', 'run', 'hello', '--session', 's'],"
        " preexec_fn=lambda: (os.close(1), os.close(2)), close_fds=False)\n"
        "sys.exit(done.returncode)"
    )
    shell.python("-c", program)
    assert shell.kinds("s")[-1] == "session/closed"


def test_what_a_model_says_cannot_steer_the_terminal(shell: Shell) -> None:
    evil = "a\x1b[2Jb\x07\x9bc\x7f"
    out = shell.call("run", evil, "--session", "s").out
    assert out.startswith("a␛[2Jb␇\ufffdc␡\n")
    for command in (("show", "s"), ("show", "s", "--request", "1.1"), ("show", "s", "--deltas")):
        shown = shell.call(*command).out
        assert "a␛[2Jb␇\ufffdc␡" in shown
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    data = [row["data"] for row in shell.call("show", "s", "--json").json_lines if row["kind"] == "user/message"]
    assert data[0]["content"][0]["text"] == evil


def test_text_that_is_not_unicode_is_delivered_and_shown_somehow(shell: Shell) -> None:
    raw = [sys.executable, "-m", "flightlog.cli", "run", b"caf\xe9", "--session", "s"]
    program = f"import subprocess, sys; sys.exit(subprocess.run({raw!r}).returncode)"
    assert "caf\ufffd" in shell.python("-c", program).out
    shell.call("verify")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_terminal_without_unicode_gets_question_marks(shell: Shell, locale: dict[str, str]) -> None:
    plain = Shell(shell.folder, locale)
    assert "turn 1 completed ? 1 step" in plain.run("run", "hello", "--session", "s").out
    plain.call("show", "s")


def test_a_person_sees_colours_within_the_width_of_the_terminal(counted: Shell) -> None:
    for command in (["sessions"], ["show", "c"]):
        seen = _on_a_terminal(counted, command, columns=80)
        assert "\x1b[" in seen
        lines = re.sub(r"\x1b\[[\d;]*m", "", seen).splitlines()
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        assert len(lines) > 1


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (("sessions",), 3),
        (("task", "list"), 1),
        (("query", "SELECT name, 'on to the end' FROM session_keys"), 3),
        (("query", f"SELECT '{'word ' * 35}' AS a, '{'word ' * 35}' AS b, 'on to the end' AS c"), 1),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else "",
)
def test_a_pipe_gets_one_row_per_line_whatever_its_width(wide: Shell, command: tuple[str, ...], rows: int) -> None:
    _, *lines = wide.call(*command).out.splitlines()
    assert len(lines) == rows
    assert max(map(len, lines)) > 200
    assert any(line.rstrip().endswith("on to the end") for line in lines)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell whose sessions and tasks have names as long as may be. Only to be read."""
    shell = Shell(tmp_path_factory.mktemp("wide"))
    with flightlog.sync.open_kernel(shell.db, discover=False, plugins=[scripted]) as kernel:
        for name in ("s" * 200, "short"):
            with kernel.session(name, title=f"{'title ' * 20}on to the end"):
                pass
        kernel.tasks.submit("a goal that goes on to the end", id="t" * 200)
    return shell


def test_a_pipe_gets_calls_and_results_uncut(shell: Shell) -> None:
    note = f"{'n' * 100}.txt"
    model = f"scripted:count?to=1&note_every=1&note={note}"
    out = shell.call("run", "count", "--session", "s", "--model", model, "--workspace", ".").out
    assert re.search(rf'append_line\(path="{note}", line="counted to 1"\)\n', out)


def _on_a_terminal(shell: Shell, command: list[str], *, columns: int) -> str:
    """What `command` writes to a terminal of that width."""
    import fcntl
    import pty
    import struct
    import subprocess
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "flightlog.cli", *command],
        cwd=shell.folder,
        env=shell.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:
        pass  # the other end is closed: that is how a terminal says so
    os.close(ours)
    assert process.wait() == 0
    return seen.decode()


def test_the_gate_runs_the_checks_and_the_demo() -> None:
    root = Path(HERE).parents[1]
    gate = (root / ".ci" / "run").read_text()
    assert gate.startswith("#!/usr/bin/env bash\n")
    assert os.access(root / ".ci" / "run", os.X_OK)
    for needed in ("set -euo pipefail", "make check", "make demo"):
        assert needed in gate
    for name in ("Makefile", ".ci/run"):
        assert "://" not in (root / name).read_text()
