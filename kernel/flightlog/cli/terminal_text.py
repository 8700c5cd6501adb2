"""Text fit for a terminal: nothing a model, a tool or a log says may steer it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_VISIBLE: Final = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), "\ufffd")
)
_ONE_LINE: Final = _VISIBLE | {ord("\n"): "\u21b5", ord("\t"): " "}


def visible(text: str) -> str:
    """`text` with control characters made visible; line breaks and tabs stay."""
    return text.translate(_VISIBLE)


def one_line(text: str, max_chars: int = 200) -> str:
    """`text` on one line, at most about `max_chars` characters of it."""
    cut = text if len(text) <= max_chars else f"{text[: max_chars - 1]}\u2026"
    return cut.translate(_ONE_LINE)


def ends(text: str, max_chars: int) -> str:
    """The beginning and the end of `text` on one line, at most about `max_chars` characters in all."""
    if len(text) <= max_chars:
        return one_line(text, max_chars)
    half = max(1, max_chars // 2 - 2)
    return f"{one_line(text[:half])} \u2026 {one_line(text[-half:])}"


def arguments(raw: str) -> str:
    """A call's raw arguments as a person would write them, or as they are when they are no object."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return one_line(raw)
    if not isinstance(value, dict):
        return one_line(raw)
    return one_line(", ".join(f"{key}={json.dumps(item, ensure_ascii=False)}" for key, item in value.items()))


def moment(at_us: int) -> str:
    """A time in Unix microseconds as date and time in UTC, to the second."""
    return _utc(at_us, "%Y-%m-%d %H:%M:%S")


def clock_time(at_us: int) -> str:
    """The time of day of `at_us` in UTC, to the millisecond."""
    return _utc(at_us, "%H:%M:%S.%f")[:-3]


def duration(microseconds: int) -> str:
    """A duration as people read it."""
    if microseconds < 1_000_000:
        milliseconds = max(0, microseconds) / 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    seconds = microseconds / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def cost(costs_pico: Mapping[str, int], unpriced: int) -> str:
    """Costs in 10^-12 by currency as people read them; with `unpriced` attempts they are not all there was."""
    amounts = " + ".join(f"{_amount(pico)} {one_line(currency)}" for currency, pico in costs_pico.items())
    return f"{amounts} and {counted(unpriced, 'attempt')} of unknown cost" if unpriced else amounts


def _amount(pico: int) -> str:
    """All decimals that are not zeros, at least two: what is shown is what was spent."""
    whole, rest = divmod(pico, 10**12)
    return f"{whole:,}.{f'{rest:012d}'.rstrip('0').ljust(2, '0')}"


def counted(number: int, noun: str) -> str:
    """`number` with its noun, in the plural where it is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _utc(at_us: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{at_us} \u00b5s"
