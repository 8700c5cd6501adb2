"""Installed plugins that are broken: each is listed with its error, everything else works as if it were not there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import flightlog
from flightlog.runtime.plugins import load_plugins
from support.children import told_by

_REGISTRY = load_plugins(discover=True, plugins=())
BUILT_IN, SECTIONS = sorted(_REGISTRY.tools), sorted(_REGISTRY.sections)
"""The tools of the plugins in the box that are discovered."""

HEADER = """
from flightlog_hookspecs import Hook, PromptSection, Tool, hookimpl, tool

SECTION = PromptSection(name="quiet", rank=1, render=lambda: "Be quiet.")

def made(name):
    return Tool(body=lambda: name, name=name, description="Say a name.", effect="read")
"""

GOOD = """
@hookimpl
def register_tools(register):
    register(made("good_tool"))

@hookimpl
def register_prompt_sections(register):
    register(PromptSection(name="good", rank=1, render=lambda: "Be good."))
"""

HOOK = "@hookimpl\ndef register_hooks(register):\n    register(Hook({}, name='x'))"
TOOL = "@hookimpl\ndef register_tools(register):\n    register({})"

BROKEN = {
    "fails_on_import": ("raise RuntimeError('no such luck')", "RuntimeError: no such luck"),
    "imports_what_is_not_there": ("import no_such_module_anywhere", "ModuleNotFoundError"),
    "is_no_python": ("def (", "SyntaxError"),
    "exits_on_import": ("raise SystemExit(3)", "SystemExit: 3"),
    "raises_something_foreign": ("class Foreign(BaseException): pass\nraise Foreign('odd')", "Foreign: odd"),
    "recurses_on_import": ("def f(): f()\nf()", "RecursionError"),
    "misspells_a_hook": (
        "@hookimpl\ndef register_toolz(register):\n    register(made('never'))",
        "register_toolz",
    ),
    "misspells_an_argument": (
        "@hookimpl\ndef register_tools(registre):\n    registre(made('never'))",
        "registre",
    ),
    "takes_too_much": ("@hookimpl\ndef register_tools(register, kernel):\n    pass", "kernel"),
    "raises_in_its_hook": (
        "@hookimpl\ndef register_tools(register):\n    register(made('half_tool'))\n    raise ValueError('halfway')",
        "ValueError: halfway",
    ),
    "exits_in_its_hook": (
        "@hookimpl\ndef register_tools(register):\n    register(made('half_tool2'))\n    raise SystemExit",
        "SystemExit",
    ),
    "fails_in_its_second_hook": (
        GOOD.replace("good", "half") + "    raise KeyError('second')",
        "KeyError",
    ),
    "takes_a_name_that_is_taken": (
        "@hookimpl\ndef register_tools(register):\n    register(made('half_tool4'))\n    register(made('read_file'))",
        "tool 'read_file' exists already",
    ),
    "registers_twice": (
        "@hookimpl\ndef register_tools(register):\n    register(made('twice'))\n    register(made('twice'))",
        "tool 'twice' exists already",
    ),
    "registers_what_is_no_tool": ("@hookimpl\ndef register_tools(register):\n    register('tool')", "not a Tool"),
    "registers_what_is_no_adapter": (
        "@hookimpl\ndef register_adapters(register):\n    register(object())",
        "not an Adapter",
    ),
    "has_a_bad_schema": (
        TOOL.format("Tool(body=print, name='x', description='x', parameters={'type': 'no such type'})"),
        "JSON Schema",
    ),
    "has_no_description": (
        TOOL.format("Tool(body=lambda: 1, name='x')"),
        "no description",
    ),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "needs_a_newer_contract": ("flightlog_contract = 99\n" + GOOD.replace("good", "newer"), "upgrade flightlog"),
    "states_no_contract": ("flightlog_contract = 'new'\n" + GOOD.replace("good", "odd"), "must be a number"),
    "imports_from_a_newer_contract": (
        "from flightlog_hookspecs import Holodeck",
        "It seems to need a newer flightlog",
    ),
    "moves_the_process": ("import os\nos.chdir('/')\n" + GOOD.replace("good", "moves"), "the working folder"),
    "changes_the_locale": (
        "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')\n" + GOOD.replace("good", "locale"),
        "the locale",
    ),
    "installs_a_signal_handler": (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + GOOD.replace("good", "signal"),
        "ValueError: signal only works in main thread",
    ),
    "registers_a_hook_at_no_point": (
        HOOK.format("point='before_lunch', body=print"),
        "before_lunch",
    ),
    "registers_a_hook_that_takes_nothing": (
        HOOK.format("point='before_step', body=lambda: None"),
        "must take one argument",
    ),
    "answers_no_question": (
        "class Hostile:\n    def __getattribute__(self, name): raise RuntimeError('leave me alone')\n",
        "leave me alone",
    ),
    "has_a_bad_name": (
        "@hookimpl\ndef register_tools(register):\n    register(made('not a name!'))",
        "tool name",
    ),
}

LOOK = """
import json, locale, os, sys
sys.path.insert(0, sys.argv[1])
import trio, flightlog

before = locale.setlocale(locale.LC_ALL)

async def main():
    async with flightlog.open_kernel(sys.argv[2], workspace=sys.argv[1]) as kernel:
        registry = kernel.registry
        async with kernel.session("s", model="scripted:echo") as session:
            await session.followup("still here")
            turn = await session.run()
        with flightlog.open_log(sys.argv[2]) as log:
            log.session("s").verify()
        print(json.dumps({
            "problems": {problem.name: problem.error for problem in registry.problems},
            "where": {problem.name: problem.where for problem in registry.problems},
            "distributions": {problem.name: [problem.distribution, problem.version] for problem in registry.problems},
            "folder": os.getcwd(),
            "locale_kept": locale.setlocale(locale.LC_ALL) == before,
            "tools": sorted(registry.tools),
            "adapters": sorted(registry.adapters),
            "sections": sorted(registry.sections),
            "versions": {version.name: version.version for version in registry.versions},
            "answer": turn.text,
            "reason": turn.reason,
        }))

trio.run(main)
"""


def install(folder: Path, name: str, code: str, *, value: str | None = None, brings: str = "") -> None:
    """What `pip install` leaves behind for a package with one module and one entry point, named like it by default."""
    (folder / f"{name}.py").write_text(dedent(HEADER) + code)
    info = folder / f"{name}-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[flightlog]\n{brings or name} = {value or name}\n")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process makes of all of them together, and of a good one."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "a_good_one", GOOD)
    install(folder, "z_good_class", "class Plugin:\n" + CLASS_HOOK, value="z_good_class:Plugin")
    for name, (code, _) in BROKEN.items():
        install(folder, name, code, value=f"{name}:Hostile" if "Hostile" in code else None)
    install(folder, "names_what_is_not_there", "", value="names_what_is_not_there:nothing")
    install(folder, "names_no_module", "", value="no_such_module_at_all")
    install(folder, "names_nonsense", "", value="what is this")
    install(folder, "z_takes_a_name", GOOD.replace("good", "taken"), brings="a_good_one")
    install(
        folder,
        "fails_when_made",
        "class Plugin:\n    def __init__(self): raise OSError('no')",
        value="fails_when_made:Plugin",
    )
    found: dict[str, Any] = told_by(LOOK, str(folder), str(folder / "a.db"))
    return found


LEADS_NOWHERE = ["names_what_is_not_there", "names_no_module", "names_nonsense", "fails_when_made"]

CLASS_HOOK = """
    __version__ = "9"
    @hookimpl
    def register_tools(self, register):
        register(made("class_tool"))
"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_error(seen: dict[str, Any], name: str) -> None:
    assert BROKEN[name][1] in seen["problems"][name]


@pytest.mark.parametrize("name", LEADS_NOWHERE)
def test_an_entry_point_that_leads_nowhere_is_listed_too(seen: dict[str, Any], name: str) -> None:
    assert name in seen["problems"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_file_and_the_line_that_failed(seen: dict[str, Any], name: str) -> None:
    file, _, line = seen["where"][name].rpartition(":")
    if name in NO_LINE:
        assert seen["where"][name].endswith(f"{name}.py")
        return
    assert file.endswith(f"{name}.py"), seen["where"][name]
    text = (dedent(HEADER) + BROKEN[name][0]).splitlines()[int(line) - 1]
    assert AT_LINE.get(name, "") in text, text
    assert text.strip()


NO_LINE = {
    "needs_a_newer_contract",
    "states_no_contract",
    "takes_a_name_that_is_taken",
    "moves_the_process",
    "changes_the_locale",
}
"""None of their lines failed: what they amount to did."""

AT_LINE = {
    "fails_on_import": "no such luck",
    "is_no_python": "def (",
    "misspells_a_hook": "hookimpl",
    "misspells_an_argument": "hookimpl",
    "raises_in_its_hook": "halfway",
    "fails_in_its_second_hook": "second",
    "registers_what_is_no_tool": "register('tool')",
    "has_a_bad_schema": "no such type",
    "interrupts": "raise KeyboardInterrupt",
    "installs_a_signal_handler": "SIG_IGN",
}


@pytest.mark.parametrize("name", ["names_no_module", "names_nonsense"])
def test_an_entry_point_without_a_module_is_listed_with_its_own_line(seen: dict[str, Any], name: str) -> None:
    assert seen["where"][name].endswith(f"{name}-1.2.3.dist-info/entry_points.txt:2")


def test_what_pip_calls_a_broken_plugin_is_listed_too(seen: dict[str, Any]) -> None:
    assert seen["distributions"].pop("a_good_one") == ["z_takes_a_name", "1.2.3"]
    assert all(found == [name, "1.2.3"] for name, found in seen["distributions"].items())


def test_a_second_plugin_of_the_same_name_is_listed_and_the_first_works(seen: dict[str, Any]) -> None:
    assert "there is a plugin 'a_good_one' already, a_good_one brings it" in seen["problems"]["a_good_one"]


def test_what_belongs_to_the_whole_process_is_as_it_was(seen: dict[str, Any]) -> None:
    assert (seen["folder"], seen["locale_kept"]) == (os.getcwd(), True)


def test_only_the_broken_ones_are_listed(seen: dict[str, Any]) -> None:
    assert len(seen["problems"]) == len(BROKEN) + len(LEADS_NOWHERE) + 1


def test_nothing_of_a_broken_plugin_is_registered(seen: dict[str, Any]) -> None:
    assert seen["tools"] == sorted([*BUILT_IN, "class_tool", "good_tool"])
    assert seen["sections"] == sorted([*SECTIONS, "good"])
    assert not set(seen["versions"]) & set(BROKEN)


def test_the_good_ones_work_and_carry_the_version_of_their_distribution(seen: dict[str, Any]) -> None:
    assert seen["versions"]["a_good_one"] == "1.2.3"
    assert seen["versions"]["z_good_class"] == "1.2.3"
    assert "scripted" in seen["adapters"]


def test_a_session_runs_as_if_the_broken_ones_were_not_there(seen: dict[str, Any]) -> None:
    assert (seen["reason"], seen["answer"]) == ("completed", "still here")


def test_a_missing_adapter_is_explained_by_the_plugin_that_was_left_out(tmp_path: Path) -> None:
    install(tmp_path, "wanted_adapter", "raise RuntimeError('its SDK is too old')")
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import trio, flightlog

async def main():
    async with flightlog.open_kernel(sys.argv[2]) as kernel:
        try:
            async with kernel.session("s", model="wanted:m"):
                pass
        except flightlog.errors.UsageError as error:
            print(json.dumps(str(error)))

trio.run(main)
"""
    message = told_by(code, str(tmp_path), str(tmp_path / "a.db"))
    assert "no adapter named 'wanted'" in message
    assert "wanted_adapter" in message
    assert "its SDK is too old" in message


OPEN = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/."]  # the same folder twice
import trio, flightlog
import flightlog.runtime.quarantine as quarantine

quarantine.LOAD_LIMIT_S = float(sys.argv[4])
names = json.loads(sys.argv[3])

async def main():
    async with flightlog.open_kernel(sys.argv[2], discover=names if isinstance(names, bool) else set(names)) as kernel:
        registry = kernel.registry
        print(json.dumps([
            sorted([*registry.tools, *registry.sections]),
            {problem.name: [problem.error, problem.where] for problem in registry.problems},
            sorted({"loud", "quiet"} & set(sys.modules)),
        ]))

trio.run(main)
"""
LOUD = "raise RuntimeError('loud')"


def found(
    folder: Path, discover: str, *, limit_s: float = 120.0, **variables: str
) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """The tools and sections, the problems, and which of the modules were imported, in a fresh process."""
    offers, problems, modules = told_by(OPEN, str(folder), str(folder / "a.db"), discover, str(limit_s), env=variables)
    return offers, problems, modules


def test_without_discovery_installed_plugins_are_not_even_imported(tmp_path: Path) -> None:
    install(tmp_path, "loud", LOUD)
    assert found(tmp_path, "false", FLIGHTLOG_LOAD_PLUGINS="loud") == ([], {}, [])


def test_only_the_plugins_that_are_named_are_imported(tmp_path: Path) -> None:
    install(tmp_path, "loud", LOUD)
    install(tmp_path, "quiet", TOOL.format("made('quiet')"))
    by_argument = found(tmp_path, '["quiet"]', FLIGHTLOG_LOAD_PLUGINS="loud")
    by_variable = found(tmp_path, "true", FLIGHTLOG_LOAD_PLUGINS=" quiet, ")
    assert by_argument == by_variable == (["quiet"], {}, ["quiet"])
    assert found(tmp_path, "true", FLIGHTLOG_LOAD_PLUGINS="") == found(tmp_path, "[]") == ([], {}, [])


def test_a_name_that_nothing_answers_to_is_listed(tmp_path: Path) -> None:
    _, problems, _ = found(tmp_path, "true", FLIGHTLOG_LOAD_PLUGINS="files,fiels")
    assert problems == {"fiels": ["is to be loaded, but no such plugin is installed", ""]}


def test_plugins_that_hang_are_left_behind_and_listed_with_the_line_they_hang_at(tmp_path: Path) -> None:
    hang = "import threading\nthreading.Event().wait()  # for ever"
    install(tmp_path, "at_import", hang)
    install(tmp_path, "in_its_hook", "@hookimpl\ndef register_tools(register):\n    " + hang.replace("\n", "\n    "))
    install(tmp_path, "quiet", "@hookimpl\ndef register_prompt_sections(register):\n    register(SECTION)")
    offers, problems, _ = found(tmp_path, '["at_import", "in_its_hook", "quiet"]', limit_s=2.0)
    assert offers == ["quiet"]
    assert sorted(problems) == ["at_import", "in_its_hook"]
    for name, (error, where) in problems.items():
        file, _, line = where.rpartition(":")
        assert "did not finish loading within" in error
        assert file.endswith(f"{name}.py")
        assert "for ever" in (tmp_path / f"{name}.py").read_text().splitlines()[int(line) - 1]


def test_metadata_that_cannot_be_read_hides_no_other_plugin(tmp_path: Path) -> None:
    install(tmp_path, "quiet", TOOL.format("made('quiet')"))
    install(tmp_path, "torn", "")
    torn = tmp_path / "torn-1.2.3.dist-info" / "entry_points.txt"
    torn.write_text("[flightlog]\ntorn\n")
    tools, problems, _ = found(tmp_path, "true")
    assert tools == sorted([*BUILT_IN, *SECTIONS, "quiet"])
    assert list(problems) == ["torn"]
    assert problems["torn"][1] == str(torn)


@pytest.mark.parametrize("wrong", ["files", None, 5, [1]])
async def test_discover_takes_a_truth_value_or_names_and_nothing_else(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(flightlog.errors.UsageError, match="discover must be"):
        async with flightlog.open_kernel(tmp_path / "a.db", discover=wrong):
            pass
    assert not (tmp_path / "a.db").exists()


def test_a_package_that_pip_installed_is_found_and_gone_once_pip_removed_it(tmp_path: Path) -> None:
    """A broken one too: with pip alone, offline, into an environment of its own."""
    wheel = made_wheel(tmp_path, "real_plugin", TOOL.format("made('really')"))
    broken = made_wheel(tmp_path, "torn_plugin", LOUD)
    site = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(site)], check=True, timeout=120)
    python = str(site / "bin" / "python")
    run_pip("--python", python, "install", "--no-index", "--no-deps", str(wheel), str(broken))
    (packages,) = site.glob("lib/*/site-packages")
    tools, problems, _ = found(packages, "true")
    assert tools == sorted([*BUILT_IN, *SECTIONS, "really"])
    file, _, line = problems["torn_plugin"][1].rpartition(":")
    assert file == str(packages / "torn_plugin.py")
    assert Path(file).read_text().splitlines()[int(line) - 1] == LOUD
    run_pip("--python", python, "uninstall", "--yes", "real_plugin", "torn_plugin")
    assert found(packages, "true")[:2] == (sorted([*BUILT_IN, *SECTIONS]), {})


def run_pip(*arguments: str) -> None:
    """Run pip: this environment's, or that of the interpreter it was made with."""
    ours, theirs = sys.executable, str(Path(sys.base_prefix) / "bin" / "python3")
    python = ours if find_spec("pip") else theirs
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments], check=True, timeout=120)


def made_wheel(folder: Path, name: str, code: str) -> Path:
    """A wheel with one module and one entry point, both called `name`."""
    about = f"{name}-4.5.dist-info"
    files = {
        f"{name}.py": dedent(HEADER) + code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.5\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[flightlog]\n{name} = {name}\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    wheel = folder / f"{name}-4.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
