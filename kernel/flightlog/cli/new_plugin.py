"""`flightlog plugins new`: a package with one plugin in it, whose tests pass."""

from __future__ import annotations

import ast
import builtins
import keyword
import os
import re
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from flightlog.cli.exits import FINE
from flightlog.cli.options import json_option
from flightlog.cli.output import Output
from flightlog_hookspecs.markers import PROJECT

KINDS: Final = ("tool", "adapter", "prompt-section", "hook", "subagent")
"""Each has a folder in `templates`: a package that works, and is called my-plugin."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_NAME_MAX_CHARS: Final = 40
_OURS: Final = ("plugins", "hookspecs")
_NOT_OURS: Final = (".", "__pycache__")
"""How the names begin of what tools leave behind in a template."""


@click.command("new", short_help="Write the package of a new plugin.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where its folder is made. Default: here.",
)
@json_option
def new(*, kind: str, name: str, into: Path, as_json: bool) -> int:
    """Write the package of a new plugin: the plugin, its entry point, and tests that pass.

    NAME is what the plugin is called; its package is flightlog-NAME. Nothing is overwritten.
    """
    if error := objection(kind, name):
        raise click.BadParameter(error, param_hint="NAME")
    folder = into / f"flightlog-{name.replace('_', '-')}"
    written = write(kind, name, folder)
    output = Output(as_json=as_json)
    if as_json:
        output.json({"folder": str(folder), "files": written})
        return FINE
    for path in written:
        output.line((str(folder / path), "bold"))
    output.line(("to do  ", "dim"), f"cd {folder} && pip install -e '.[test]' && pytest")
    return FINE


def objection(kind: str, name: str) -> str:
    """Why a plugin of this kind cannot have this name; "" when it can."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX_CHARS:
        return (
            f"{name!r:.80} must be 1 to {_NAME_MAX_CHARS} lower-case letters and digits in words joined by '-' or '_', "
            "a letter first"
        )
    if keyword.iskeyword(name) or name in _OURS:
        return f"{name!r} means something else already"
    theirs = identifiers(kind)
    for spelled in (_named(own, name) for own in theirs & {*_spellings("my-plugin")}):
        if spelled in theirs or hasattr(builtins, spelled) or keyword.iskeyword(spelled):
            return f"{name!r} cannot be: a new {kind} would be called {spelled} in its code, which means something else"
    if there := [entry for entry in entry_points(group=PROJECT) if _same(entry.name, name)]:
        return f"a plugin named {there[0].name!r} is installed already"
    return ""


def identifiers(kind: str, name: str = "my-plugin") -> set[str]:
    """What has a name in the code of a new plugin, attributes left out."""
    texts = _rendered(files("flightlog.cli") / "templates" / kind, name)
    nodes = [node for path, text in texts if path.endswith(".py") for node in ast.walk(ast.parse(text))]
    return {own for node in nodes for own in _bound(node)}


def _bound(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=own) | ast.arg(arg=own):
            return (own,)
        case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) | ast.ClassDef(name=own):
            return (own,)
        case ast.alias(name=own, asname=None):
            return (own,)
    return ()


def _same(one: str, other: str) -> bool:
    return one.replace("-", "_") == other.replace("-", "_")


def write(kind: str, name: str, folder: Path) -> list[str]:
    """Write the package and return its files, relative to `folder`, which must not be there yet."""
    texts = dict(_rendered(files("flightlog.cli") / "templates" / kind, name))
    try:
        folder.mkdir()
    except FileExistsError:
        raise click.ClickException(f"{folder} is there already; nothing was written") from None
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return list(texts)


def _rendered(template: Traversable, name: str, inside: str = "") -> list[tuple[str, str]]:
    found = []
    for entry in sorted(template.iterdir(), key=lambda entry: entry.name):
        path = os.path.join(inside, _named(entry.name, name))
        if entry.name.startswith(_NOT_OURS):
            continue
        if entry.is_dir():
            found += _rendered(entry, name, path)
        else:
            found.append((path, _named(entry.read_text(encoding="utf-8"), name)))
    return found


def _named(text: str, name: str) -> str:
    """The template's name in all its spellings, replaced."""
    for theirs, ours in zip(_spellings("my-plugin"), _spellings(name), strict=True):
        text = text.replace(theirs, ours)
    return text


def _spellings(name: str) -> tuple[str, str, str, str]:
    words = name.replace("-", "_").split("_")
    return "_".join(words), "-".join(words), "_".join(words).upper(), "".join(word.capitalize() for word in words)
