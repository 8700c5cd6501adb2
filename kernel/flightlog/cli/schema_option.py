"""`--schema`: answers in JSON, checked, and nothing else on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flightlog.cli.tally import TurnCount
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.json_answer import json_of


def wanting(path: str) -> object:
    """The plugin that wants answers fitting the JSON Schema in the file at `path`. Raises `UsageError`."""
    from flightlog_plugins.structured_output import StructuredOutput

    try:
        schema = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--schema: {path} is not JSON: {error}") from None
    try:
        return StructuredOutput(schema)
    except UsageError as error:
        raise UsageError(f"--schema: {path}: {error}") from None


def values(turns: list[TurnCount]) -> list[Any]:
    """The answers of the turns that completed, which have been checked."""
    return [json_of(turn.text) for turn in turns if turn.end is not None and turn.end.reason == "completed"]
