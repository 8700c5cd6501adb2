"""Times as people write them on a command line: a moment with its zone, or a span such as 2h30m."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import click

_UNITS_S: Final = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN: Final = re.compile("".join(rf"(?:(\d+){unit})?" for unit in _UNITS_S), re.ASCII)


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601 with its zone: a local one would mean another moment on another machine."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment."""
        if isinstance(value, datetime):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time in ISO 8601, as 2031-05-07T09:30:00+02:00", param, ctx)
        if time.tzinfo is None:
            self.fail(f"{value!r} does not say its zone, as in {value}+02:00, or {value}Z for UTC", param, ctx)
        return time


class Span(click.ParamType[float]):
    """A span of time in seconds, from weeks down to seconds: 1w, 1d, 2h30m, 90s."""

    name = "SPAN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        if isinstance(value, float):
            return value
        found = _SPAN.fullmatch(value)
        if not value or found is None:
            self.fail(f"{value!r} is no span of time, as 90s, 45m, 2h30m, 1d or 1w", param, ctx)
        counts = zip(found.groups(), _UNITS_S.values(), strict=True)
        return float(sum(int(count) * unit_s for count, unit_s in counts if count))
