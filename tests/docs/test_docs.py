"""The documentation says what the code does: examples run, lists are current, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flightlog
from flightlog.testing.conformance import adapters, hooks, sections, tools
from support.environments import Environment

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
EXAMPLES = {f"{page.name}:{name}": code for page in PAGES for name, code in EXAMPLE.findall(page.read_text())}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_runs_as_it_is_printed(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_python_block_of_the_docs_is_an_example_that_runs() -> None:
    blocks = sum(page.read_text().count("```python") for page in PAGES)
    files = sum(name.endswith(".py") for page in PAGES for name, _ in FILE.findall(page.read_text()))
    assert blocks == len(EXAMPLES) + files > files > 0


STEP = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```|((?:^    \S[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
LESS = {
    "points=5000, nested=50, faults=20": "points=30, nested=2, faults=2",
    "for cents in (1, 2, 3)": "for cents in (1,)",
}


def test_the_page_on_writing_a_plugin_works_from_top_to_bottom(tmp_path: Path) -> None:
    """Its files are written and its commands run, in the order of the page, with fewer crashes than it says."""
    page = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    for much, less in LESS.items():
        assert much in page
        page = page.replace(much, less)
    environment = Environment.at(tmp_path / "venv")
    where, ran = tmp_path, 0
    for file, text, commands in STEP.findall(page):
        if file:
            (where / file).write_text(text)
            continue
        script = "\n".join(["set -e", *map(str.strip, commands.splitlines()), f"pwd > {tmp_path}/pwd"])
        environment.run("bash", "-c", script, cwd=where)
        where = Path((tmp_path / "pwd").read_text().strip())
        ran += len(commands.splitlines())
    assert (where.name, ran) == ("flightlog-dice", 7)


RULES = {
    "adapters": adapters.RULES,
    "tools": tools.RULES,
    "prompt sections": sections.RULES,
    "hooks": hooks.RULES,
}


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_of_plugins_is_on_their_page(kind: str) -> None:
    """By the id that a runner shows, in the part about that kind."""
    page = (ROOT / "docs" / "conformance.md").read_text()
    (part,) = [part for part in page.split("\n## ") if part.lower().startswith(f"{kind}\n")]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE)) == set(RULES[kind])


def test_generated_pages_match_the_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_architecture_page_can_be_read_in_ten_minutes() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 1500


def test_public_names_are_listed_once_and_lead_to_their_objects() -> None:
    assert (
        sorted([*flightlog._HOME, *flightlog._MODULES]) == sorted(flightlog.__all__) == sorted(set(flightlog.__all__))
    )
    for name in flightlog.__all__:
        assert getattr(flightlog, name) is not None


def test_every_make_target_that_the_docs_name_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^ {4}|`)make ([a-z]+)", page.read_text(), re.MULTILINE)}
    assert named
    assert named <= targets


def test_all_plugins_that_are_on_by_default_are_listed_as_such() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["flightlog"]
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "builtin-plugins.md").read_text().splitlines()
        if line.count("|") == 4
    ]
    on = " ".join(row[1].replace("-", "_") for row in rows if row[3].strip().startswith("yes"))
    assert [name for name in entries if not re.search(rf"`{name.replace('-', '_')}[`.]", on)] == []
