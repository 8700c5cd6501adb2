"""`flightlog plugins new`, and the examples: whole packages that install, pass their tests and check."""

from __future__ import annotations

import builtins
import json
import keyword
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from flightlog.cli.app import flightlog as command
from flightlog.cli.new_plugin import KINDS, identifiers, objection, write
from support.environments import ROOTS, Environment

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = {kind: f"zoo-{kind.split('-')[0]}-2" for kind in KINDS}
"""Odd enough to be spelled differently as a module, a class and a distribution."""


def new(*arguments: str, into: Path) -> Result:
    return CliRunner().invoke(command, ["plugins", "new", *arguments, "--into", str(into)], standalone_mode=False)


def generated(folder: Path) -> list[Path]:
    """A package of each kind."""
    folder.mkdir(exist_ok=True)
    for kind, name in NAMES.items():
        write(kind, name, folder / f"flightlog-{name}")
    return sorted(folder.iterdir())


def copied(folder: Path) -> list[Path]:
    """The examples: building leaves files beside the sources."""
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info"))
    return sorted(folder.iterdir())


def named(packages: list[Path]) -> list[str]:
    return [
        name
        for package in packages
        for name in tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]["flightlog"]
    ]


@pytest.mark.parametrize("made", [generated, copied], ids=["new", "examples"])
def test_each_package_passes_its_own_tests_once_pip_has_installed_it(
    made: Callable[[Path], list[Path]], tmp_path: Path
) -> None:
    """And all of them are found by their entry points, and go together."""
    packages = made(tmp_path / "made")
    assert len(packages) == len(KINDS)
    environment = Environment.at(tmp_path / "venv")
    environment.install(packages)
    tests = [str(test) for package in packages for test in package.glob("tests/test_*.py")]
    assert len(tests) == len(KINDS)
    environment.run("pytest", "-q", "-W", "error", *tests, cwd=tmp_path)
    listed = json.loads(environment.run("flightlog", "plugins", "--json", cwd=tmp_path).stdout)
    assert listed["problems"] == []
    assert set(named(packages)) <= {plugin["name"] for plugin in listed["plugins"]}


def test_all_packages_are_clean_under_strict_types_and_lint(tmp_path: Path) -> None:
    packages = [*generated(tmp_path / "new"), *copied(tmp_path / "examples")]
    sources = [str(package / part) for package in packages for part in ("src", "tests")]
    typed = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--cache-dir={tmp_path / 'cache'}", *sources],
        env=os.environ | {"MYPYPATH": os.pathsep.join([*ROOTS, *(str(package / "src") for package in packages)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    for tool in (["check"], ["format", "--check"]):
        clean = subprocess.run(
            [sys.executable, "-m", "ruff", *tool, "--no-cache", *map(str, packages)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert clean.returncode == 0, clean.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_differs_from_a_new_plugin_in_what_it_does_only(kind: str, tmp_path: Path) -> None:
    (name,) = named([EXAMPLES / kind])
    write(kind, name, tmp_path / "new")
    for there in ("pyproject.toml", f"src/flightlog_{name}/py.typed"):
        assert (EXAMPLES / kind / there).read_text() == (tmp_path / "new" / there).read_text()


def plain(identifier: str) -> str:
    """The name of a plugin that is called `identifier` in its code, in one spelling or another."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", identifier).lower().strip("_")


TAKEN = {*dir(builtins), *keyword.kwlist, *(one for kind in KINDS for one in identifiers(kind))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_means_one_thing_in_the_code_or_is_refused(kind: str) -> None:
    whole = identifiers(kind)
    for name in sorted(map(plain, TAKEN)):
        if not objection(kind, name):
            made = identifiers(kind, name)
            assert len(made) == len(whole), name
            assert {*dir(builtins)} & made == {*dir(builtins)} & whole, name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("tool", name) for name in ("words", "calls", "str", "tool", "hookimpl")),
        *(("adapter", name) for name in ("head", "text-block", "exception", "none", "adapter_case")),
        *(("prompt-section", name) for name in ("date", "render")),
        *(("hook", name) for name in ("note", "hook", "proposed")),
        ("subagent", "case"),
    ],
)
def test_a_name_that_the_template_or_python_has_already_is_refused(kind: str, name: str) -> None:
    assert "means something else" in objection(kind, name)


@pytest.mark.parametrize(
    ("kind", "name"), [("tool", "bundle"), ("adapter", "words"), ("prompt-section", "prompt_section"), ("hook", "dice")]
)
def test_a_name_that_is_spelled_otherwise_there_is_not(kind: str, name: str) -> None:
    assert objection(kind, name) == ""


def test_what_was_written_is_listed_with_what_to_do_next(tmp_path: Path) -> None:
    said = new("tool", "word_count", into=tmp_path).output
    folder = tmp_path / "flightlog-word-count"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "README.md",
        "pyproject.toml",
        "src/flightlog_word_count/__init__.py",
        "src/flightlog_word_count/py.typed",
        "tests/test_word_count.py",
    ]
    assert f"{folder}/pyproject.toml\n" in said
    assert "pip install -e '.[test]' && pytest" in said


def test_json_says_the_same(tmp_path: Path) -> None:
    told = json.loads(new("hook", "quiet", "--json", into=tmp_path).output)
    assert told["folder"] == str(tmp_path / "flightlog-quiet")
    assert "src/flightlog_quiet/__init__.py" in told["files"]


def test_nothing_of_the_template_is_left_in_what_is_written(tmp_path: Path) -> None:
    for package in generated(tmp_path):
        for file in package.rglob("*"):
            text = f"{file.relative_to(tmp_path)} {file.read_text() if file.is_file() else ''}".lower()
            assert not [name for name in ("my_plugin", "my-plugin", "myplugin") if name in text], file


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_nothing_is_overwritten(there: str, tmp_path: Path) -> None:
    target = tmp_path / "flightlog-dice"
    match there:
        case "folder":
            target.mkdir()
        case "file":
            target.write_text("mine")
        case "link":
            target.symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    refused = new("tool", "dice", into=tmp_path)
    assert isinstance(refused.exception, click.ClickException)
    assert refused.exception.message == f"{target} is there already; nothing was written"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "must be 1 to 40"),
        ("Dice", "must be 1 to 40"),
        ("2dice", "must be 1 to 40"),
        ("-dice", "must be 1 to 40"),
        ("dice-", "must be 1 to 40"),
        ("a--b", "must be 1 to 40"),
        ("../dice", "must be 1 to 40"),
        ("dice\n", "must be 1 to 40"),
        ("würfel", "must be 1 to 40"),
        ("d" * 41, "must be 1 to 40"),
        ("class", "means something else"),
        ("hookspecs", "means something else"),
        ("plugins", "means something else"),
        ("files", "a plugin named 'files' is installed already"),
        ("openai_chat", "a plugin named 'openai-chat' is installed already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_written(name: str, why: str, tmp_path: Path) -> None:
    assert why in objection("tool", name)
    with pytest.raises(click.BadParameter):
        command.main(["plugins", "new", "tool", "--into", str(tmp_path), "--", name], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
