"""The documentation says what the code does: examples run, lists are current, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flightlog

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


def test_the_package_on_the_plugins_page_passes_its_own_test(tmp_path: Path) -> None:
    """Installed as pip does it, by the metadata that stands there, without its build backend."""
    files = dict(FILE.findall((ROOT / "docs" / "plugins.md").read_text()))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    about = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["flightlog"].items())
    (about / "entry_points.txt").write_text(f"[flightlog]\n{entries}\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


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
