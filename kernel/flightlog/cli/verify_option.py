"""The option that says how much of a session is checked before it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from flightlog.runtime.recovery import Verify

F = TypeVar("F", bound=Callable[..., Any])


def verify_option(command: F) -> F:
    """`--verify shown|full`."""
    return click.option(
        "--verify",
        type=click.Choice(get_args(Verify)),
        default="shown",
        show_default=True,
        help="What is checked of a session before it goes on: what its model is shown and what is new, or all rows.",
    )(command)
