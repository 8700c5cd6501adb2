"""Times as people write them on a command line: a moment with or without a zone, or how long from now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_UNITS_S: Final = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN: Final = re.compile("".join(rf"(?:(\d{{1,9}}){unit})?" for unit in _UNITS_S), re.ASCII)


class MomentType(click.ParamType[datetime]):
    """An ISO 8601 time, of the local zone where it names none, or +30m, +2h30m, +1d from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse it."""
        text = str(value)
        try:
            if text.startswith("+") and (seconds := _seconds(text[1:])) is not None:
                return datetime.now(UTC) + timedelta(seconds=seconds)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time such as 2030-01-31T18:00 or +2h", param, ctx)


class SpanType(click.ParamType[int]):
    """A span of time, in seconds: 90s, 45m, 2h30m, 1d, 1w."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse it."""
        if (seconds := _seconds(str(value))) is None:
            self.fail(f"{value!r} is no span of time such as 90s, 45m, 2h30m, 1d or 1w", param, ctx)
        return seconds


def _seconds(text: str) -> int | None:
    """What `text` comes to, None when it is no span of time."""
    found = _SPAN.fullmatch(text)
    if not text or found is None:
        return None
    return sum(int(count) * unit_s for count, unit_s in zip(found.groups(), _UNITS_S.values(), strict=True) if count)
