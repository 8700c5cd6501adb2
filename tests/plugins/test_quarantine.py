"""Installed plugins that are broken: each is listed with its error, everything else works as if it were not there."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from support.children import told_by

HEADER = """
from flightlog_hookspecs import PromptSection, Tool, hookimpl, tool

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
    "has_a_bad_name": (
        "@hookimpl\ndef register_tools(register):\n    register(made('not a name!'))",
        "tool name",
    ),
}

LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import trio, flightlog

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
            "tools": sorted(registry.tools),
            "adapters": sorted(registry.adapters),
            "sections": sorted(registry.sections),
            "versions": {version.name: version.version for version in registry.versions},
            "answer": turn.text,
            "reason": turn.reason,
        }))

trio.run(main)
"""


def install(folder: Path, name: str, code: str, *, value: str | None = None) -> None:
    """What `pip install` leaves behind for a package with one module and one entry point."""
    (folder / f"{name}.py").write_text(dedent(HEADER) + code)
    info = folder / f"{name}-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[flightlog]\n{name} = {value or name}\n")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process makes of all of them together, and of a good one."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "a_good_one", GOOD)
    install(folder, "z_good_class", "class Plugin:\n" + CLASS_HOOK, value="z_good_class:Plugin")
    for name, (code, _) in BROKEN.items():
        install(folder, name, code)
    install(folder, "names_what_is_not_there", "", value="names_what_is_not_there:nothing")
    install(folder, "names_no_module", "", value="no_such_module_at_all")
    install(
        folder,
        "fails_when_made",
        "class Plugin:\n    def __init__(self): raise OSError('no')",
        value="fails_when_made:Plugin",
    )
    found: dict[str, Any] = told_by(LOOK, str(folder), str(folder / "a.db"))
    return found


CLASS_HOOK = """
    __version__ = "9"
    @hookimpl
    def register_tools(self, register):
        register(made("class_tool"))
"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_error(seen: dict[str, Any], name: str) -> None:
    assert BROKEN[name][1] in seen["problems"][name]


@pytest.mark.parametrize("name", ["names_what_is_not_there", "names_no_module", "fails_when_made"])
def test_an_entry_point_that_leads_nowhere_is_listed_too(seen: dict[str, Any], name: str) -> None:
    assert name in seen["problems"]


def test_only_the_broken_ones_are_listed(seen: dict[str, Any]) -> None:
    assert len(seen["problems"]) == len(BROKEN) + 3


def test_nothing_of_a_broken_plugin_is_registered(seen: dict[str, Any]) -> None:
    assert seen["tools"] == ["append_line", "class_tool", "good_tool", "read_file"]
    assert seen["sections"] == ["good"]
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


def test_without_discovery_installed_plugins_are_not_even_imported(tmp_path: Path) -> None:
    install(tmp_path, "loud", "print('imported')")
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import trio, flightlog

async def main():
    async with flightlog.open_kernel(sys.argv[2], discover=False) as kernel:
        registry = kernel.registry
        print(json.dumps([sorted(registry.tools), registry.problems, "loud" in sys.modules]))

trio.run(main)
"""
    assert told_by(code, str(tmp_path), str(tmp_path / "a.db")) == [[], [], False]
