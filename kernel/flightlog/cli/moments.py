"""Moments on the command line: a time with or without a zone, or how long from now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class MomentType(click.ParamType[datetime]):
    """An ISO 8601 time, of the local zone where it names none, or +30m, +2h, +1d from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse it."""
        if found := re.fullmatch(r"\+(\d{1,6})([smhd])", str(value), re.ASCII):
            return datetime.now(UTC) + timedelta(**{_UNITS[found[2]]: int(found[1])})
        try:
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time such as 2030-01-31T18:00 or +2h", param, ctx)
