"""Numbers on a command line: finite, and no larger than what they are for can take."""

from __future__ import annotations

from typing import Any, Final

import click

_MOST: Final = 2**63 - 1
"""The largest whole number that a log can hold."""
_MOST_S: Final = 1e9


class WholeType(click.IntRange):
    """A whole number from `least` on."""

    def __init__(self, least: int) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse it."""
        number = super().convert(value, param, ctx)
        if number > _MOST:
            self.fail(f"{value} is more than any log can hold", param, ctx)
        return number


class SecondsType(click.FloatRange):
    """A number of seconds from `least` on."""

    def __init__(self, least: float) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse it."""
        number = super().convert(value, param, ctx)
        if not number <= _MOST_S:
            self.fail(f"{value} is no number of seconds up to {_MOST_S:.0e}", param, ctx)
        return number
