"""`flightlog plugins`: it lists what works and what does not, whatever is broken."""

from __future__ import annotations

import pytest
from flightlog_process import Shell

from flightlog_hookspecs import specs

RICH = '''
print("hello from the import")
from contextlib import nullcontext
from flightlog_hookspecs import Compactor, GoalCheck, Hook, Parameter, Price, PromptSection, Redaction, Service
from flightlog_hookspecs import Subagent, Tool, hookimpl, tool

@tool(mode="parallel", effect="read")
def look(at: str) -> str:
    """Look at it."""
    return at

@hookimpl
def register_tools(register):
    register(look)

@hookimpl
def register_prompt_sections(register):
    register(PromptSection(name="manners", rank=1, render=lambda: "Be polite."))

@hookimpl
def register_hooks(register):
    register(Hook(point="before_tool", name="guard", body=lambda call: None))

@hookimpl
def register_subagents(register):
    register(Subagent(name="critic", description="Find faults.", prompt="Be strict."))

@hookimpl
def register_parameters(register):
    register(Parameter(name="haste", value=True))

@hookimpl
def register_prices(register):
    register(Price(model="a:m", currency="USD", input="1", output="2"))

@hookimpl
def register_compactors(register):
    register(Compactor(name="brief"))

@hookimpl
def register_goal_checks(register):
    register(GoalCheck(name="proof", body=lambda state: True))

@hookimpl
def register_redactions(register):
    register(Redaction(name="hush", body=lambda text: text))

@hookimpl
def register_services(register):
    register(Service(name="bell", lifespan=lambda scope: nullcontext()))
'''
TORN = "\n\nraise RuntimeError('no \x1b[31mluck')\n"


def with_plugins(shell: Shell, **modules: str) -> Shell:
    """The shell with each module installed as a plugin of that name."""
    for name, code in modules.items():
        shell = shell.with_plugin(name, name)
        (shell.folder / "site" / f"{name}.py").write_text(code)
    return shell


@pytest.fixture
def mixed(shell: Shell) -> Shell:
    """A good plugin and a broken one."""
    return with_plugins(shell, rich_one=RICH, torn=TORN)


def test_what_each_plugin_registers_is_listed(mixed: Shell) -> None:
    out = mixed.run("plugins").out
    assert "rich_one 1.0\n" in out
    for line in (
        "  tools       look (parallel, read), critic (parallel, external)",
        "  sections    manners (static)",
        "  hooks       before_tool: guard",
        "  subagents   critic",
        "  parameters  haste",
        "  prices      a:m",
        "  goal checks proof",
        "  compactors  brief",
        "  redactions  hush",
        "  services    bell",
        "  adapters    scripted:",
    ):
        assert f"{line}\n" in out


def test_all_that_a_plugin_can_register_is_listed(mixed: Shell) -> None:
    names = {"prompt_sections": "sections"}
    kinds = [name.removeprefix("register_") for name in vars(specs) if name.startswith("register_")]
    listed = {plugin["name"]: plugin for plugin in mixed.run("plugins", "--json").json["plugins"]}["rich_one"]
    assert listed.keys() == {names.get(kind, kind) for kind in kinds} | {"name", "version"}
    shown = mixed.run("plugins").out.partition("rich_one 1.0\n")[2]
    for kind in listed.keys() - {"name", "version", "adapters"}:
        assert listed[kind], kind
        assert f"  {kind.replace('_', ' '):<11} " in shown


def test_a_broken_plugin_is_listed_with_its_line_and_how_to_get_rid_of_it(mixed: Shell) -> None:
    done = mixed.run("plugins", "list")
    assert "left out: 1 plugin\n" in done.out
    assert "torn 1.0: RuntimeError: no \u241b[31mluck\n" in done.out, "nothing it says steers the terminal"
    assert f"{mixed.folder / 'site' / 'torn.py'}:3\n" in done.out
    assert "pip uninstall torn" in done.out
    assert "\x1b[31m" not in done.out


def test_json_is_one_document_whatever_plugins_print(mixed: Shell) -> None:
    done = mixed.run("plugins", "--json")
    assert done == mixed.run("plugins", "list", "--json")
    assert "hello from the import" in done.err
    listed = {plugin["name"]: plugin for plugin in done.json["plugins"]}
    assert set(listed) >= {"files", "rich_one", "scripted"}
    assert listed["rich_one"] == {
        "name": "rich_one",
        "version": "1.0",
        "tools": [
            {"name": "look", "mode": "parallel", "effect": "read"},
            {"name": "critic", "mode": "parallel", "effect": "external"},
        ],
        "adapters": [],
        "sections": [{"name": "manners", "kind": "static", "rank": 1}],
        "hooks": [{"point": "before_tool", "name": "guard"}],
        "subagents": ["critic"],
        "parameters": ["haste"],
        "prices": ["a:m"],
        "goal_checks": ["proof"],
        "compactors": ["brief"],
        "redactions": ["hush"],
        "services": ["bell"],
    }
    (problem,) = done.json["problems"]
    assert (problem["name"], problem["version"], problem["distribution"]) == ("torn", "1.0", "torn")
    assert problem["where"].endswith("torn.py:3")


def test_only_check_makes_a_broken_plugin_an_error(mixed: Shell) -> None:
    mixed.run("plugins", "list", "--check", code=1)
    mixed.run("plugins", "--check", "--json", code=1)
    mixed.run("plugins", "list", code=0)
    mixed.call("plugins", "list", "--check", code=0)


def test_every_other_command_works_beside_a_broken_plugin(mixed: Shell) -> None:
    done = mixed.run("run", "hello", "--session", "s", "--model", "scripted:echo")
    assert "hello" in done.out
    assert "plugin 'torn' was left out" in done.err
    mixed.run("plugins", "--help")


def test_a_name_that_nothing_answers_to_is_explained_by_the_variable(shell: Shell) -> None:
    asking = Shell(shell.folder, {"FLIGHTLOG_LOAD_PLUGINS": "nothing"})
    out = asking.call("plugins").out
    assert "no plugins\n" in out
    assert "nothing: is to be loaded, but no such plugin is installed\n" in out
    assert "correct or unset FLIGHTLOG_LOAD_PLUGINS\n" in out
