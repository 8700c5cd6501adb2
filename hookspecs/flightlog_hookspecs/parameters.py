"""Request parameters: what a provider is asked for besides the conversation."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

OUTPUT_SCHEMA: Final = "output_schema"
"""Asks for a JSON answer: `{"name": "...", "schema": {...}}`, a name of 1 to 64 ASCII letters, digits, "_" and "-",
and a JSON Schema 2020-12."""


@frozen(kw_only=True)
class Parameter:
    """A parameter of every request: part of the head, so it is in the log, and a change starts a new generation.

    Adapters send the parameters that they know, as their provider wants them, and leave out what that would
    refuse. All in the box know `output_schema`, which asks for an answer in JSON:
    `{"name": "answer", "schema": {...}}`.
    """

    name: str
    """Unique in its scope; a session's shadows its kernel's."""
    value: object = field(repr=False)
    """A JSON value. It is taken as it is when it is registered."""
