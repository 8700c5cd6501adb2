"""The door: every public name is there and described, and importing it does nothing else."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import flightlog
from flightlog_hookspecs import errors, events
from support.children import run_python, told_by

WATCHED_IMPORT = """
import json, os, sys

written, read = [], []

def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in (mode or "r") for letter in "wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if writes:
            written.append(str(path))
    elif event in ("os.mkdir", "os.remove", "os.rename", "sqlite3.connect", "socket.connect", "subprocess.Popen"):
        written.append(event)

class Watching(type(os.environ)):
    def __getitem__(self, key):
        read.append(key)
        return super().__getitem__(key)

os.environ.__class__ = Watching
sys.dont_write_bytecode = True
sys.addaudithook(watch)
before = set(sys.modules)
exec(sys.argv[1])
loaded = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
threads = sys._current_frames()
print(json.dumps({"written": written, "read": read, "loaded": loaded, "threads": len(threads)}))
"""


@pytest.mark.parametrize("statement", ["import flightlog", "from flightlog import *"])
def test_importing_writes_nothing_reads_no_environment_and_starts_nothing(statement: str) -> None:
    seen: dict[str, Any] = told_by(WATCHED_IMPORT, statement)
    # Importing trio looks for libpthread with ldconfig; that is its business, and not ours before it is used.
    trios = ["/dev/null", "subprocess.Popen"] if "trio" in seen["loaded"] else []
    assert seen["written"] == trios
    assert ("trio" in seen["loaded"]) == ("*" in statement)
    assert [key for key in seen["read"] if not key.startswith("PYTHON")] == []
    assert seen["threads"] == 1


@pytest.mark.parametrize("statement", ["import flightlog", "from flightlog import *", "import flightlog.testing"])
def test_importing_loads_nothing_that_only_some_need(statement: str) -> None:
    seen: dict[str, Any] = told_by(WATCHED_IMPORT, statement)
    heavy = {"click", "rich", "platformdirs", "jsonschema", "msgspec", "docstring_parser", "anthropic", "openai"}
    heavy |= {"email", "pickle", "csv", "zipfile"}  # what looks for installed plugins, runs tools apart, exports
    assert heavy & set(seen["loaded"]) == set()
    assert "flightlog_plugins" not in seen["loaded"], "a built-in is found as any other plugin is"
    assert "pytest" not in seen["loaded"]
    assert "hypothesis" not in seen["loaded"]


def test_who_only_reads_loads_nothing_that_runs_sessions() -> None:
    loaded: list[str] = told_by("import json, sys; from flightlog import open_log; print(json.dumps([*sys.modules]))")
    assert "flightlog.runtime.reader" in loaded
    assert {"flightlog.api", "flightlog.runtime.driver", "flightlog.runtime.tool_runner"} & set(loaded) == set()


def test_importing_prints_nothing() -> None:
    done = run_python("from flightlog import *")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", flightlog.__all__)
def test_every_public_name_exists_and_is_described(name: str) -> None:
    value = getattr(flightlog, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute} has no docstring"


def test_the_list_of_public_names_is_sorted_and_is_what_dir_shows() -> None:
    assert flightlog.__all__ == sorted(flightlog.__all__)
    assert set(flightlog.__all__) <= set(dir(flightlog))


def test_a_name_that_is_not_public_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'flightlog' has no attribute 'no_such_name'"):
        flightlog.no_such_name  # noqa: B018


def test_every_error_is_described_and_stands_in_the_tree() -> None:
    found = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)]
    assert len(found) > 15
    for error in found:
        assert error.__doc__, error
        assert issubclass(error, errors.FlightlogError) == (error is not errors.InvariantViolation)
    assert not issubclass(errors.InvariantViolation, errors.FlightlogError)


def test_the_public_modules_hold_the_contracts_own_classes() -> None:
    assert isinstance(flightlog.errors, ModuleType)
    assert flightlog.errors.LogCorrupt is errors.LogCorrupt
    assert flightlog.events.TurnEnd is events.TurnEnd
