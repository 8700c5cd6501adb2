"""The shells that people look at a log with."""

from __future__ import annotations

import shutil
import sys

import pytest

from support.shells import Shell


@pytest.fixture(params=["sqlite3", "apsw"])
def shell(request: pytest.FixtureRequest) -> Shell:
    """The sqlite3 shell of this machine, and the one that comes with apsw: two builds of SQLite."""
    if request.param == "apsw":
        return Shell((sys.executable, "-m", "apsw"))
    found = shutil.which("sqlite3")
    if found is None:
        pytest.skip("there is no sqlite3 shell on this machine, and no package on PyPI that ships it")
    return Shell((found, "-batch"))
