"""A prompt section made of a file: what is still to be done, and never more of it than is worth its tokens.

It is a "runtime" section: as the file changes, the model is told so in a message, and what it was told before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flightlog_hookspecs import PromptSection, hookimpl

flightlog_contract = 1

LINES_MAX = 10
LINE_MAX_CHARS = 200


def todo(path: Path = Path("TODO.md")) -> PromptSection:
    """The section. Without the file, or with nothing left to do, there is nothing to say."""

    def render() -> str:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        left = [line.strip()[:LINE_MAX_CHARS] for line in text.splitlines() if line.strip().startswith("- [ ]")]
        more = [f"and {len(left) - LINES_MAX} more"] if len(left) > LINES_MAX else []
        return "\n".join(["Still to be done:", *left[:LINES_MAX], *more]) if left else ""

    return PromptSection(name="todo", rank=100, kind="runtime", render=render)


@hookimpl
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer the section."""
    register(todo())
