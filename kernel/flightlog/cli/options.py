"""Options that several commands share, and where the log stands when nobody says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import platformdirs

from flightlog.runtime.reader import log_path_of
from flightlog_hookspecs.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

DB_VARIABLE = "FLIGHTLOG_DB"


class PathType(click.Path):
    """A path. An empty one, such as a shell makes of a variable that is not set, stands for no default."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check it."""
        if not value:
            self.fail("it is empty, and so names no file", param, ctx)
        return super().convert(value, param, ctx)


def db_option(command: F) -> F:
    """`--db PATH`."""
    return click.option(
        "--db",
        metavar="PATH",
        envvar=DB_VARIABLE,
        type=PathType(dir_okay=False),
        help=f"The log file. Default: ${DB_VARIABLE}, else agent.db in the user's data folder.",
    )(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def log_to_write(given: str | None) -> str:
    """The path of the log, whose folder exists; only the default one is created, for its owner alone."""
    if given is not None:
        path = log_path_of("--db", given)
        if not os.path.isdir(os.path.dirname(path)):
            raise UsageError(f"{path}: its folder does not exist. Create {os.path.dirname(path)} first.")
        return path
    path = _default()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return path


def log_to_read(given: str | None) -> str:
    """The path of a log that exists."""
    path = _default() if given is None else log_path_of("--db", given)
    if not os.path.lexists(path):
        raise UsageError(f"{path}: no such file. `flightlog run` creates it, --db names another.")
    return path


def is_found_unaided(path: str) -> bool:
    """True when the commands use the log at `path` without being told."""
    return path == os.path.abspath(os.environ.get(DB_VARIABLE) or _default())


def _default() -> str:
    return os.path.join(platformdirs.user_data_dir("flightlog", appauthor=False), "agent.db")
