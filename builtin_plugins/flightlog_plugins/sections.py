"""What the model is told besides the conversation: who it is, what the rules are, what is in the workspace.

    plugins=[Identity("You maintain the billing service."), Rules(path=work / "AGENTS.md"), Workspace(work)]

Each is a plugin with one prompt section. Identity and rules are part of the system text; rules that change while a
session goes on, and what is in the workspace, reach the model as messages, each time they differ.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Final

from attrs import field, frozen

from flightlog_hookspecs import PromptSection, hookimpl
from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.files.confinement import Guarded
from flightlog_plugins.files.walking import Walk, shown

RULES_MAX_CHARS: Final = 32_000
"""A longer text of rules is cut, and says so."""
ENTRIES_MAX: Final = 200
"""As many entries of the workspace are named."""

IDENTITY_RANK: Final = 0
RULES_RANK: Final = 10
WORKSPACE_RANK: Final = 20


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"text must be a string, not {type(value).__name__}")
    return value


def _path(value: str | os.PathLike[str]) -> str:
    try:
        return os.path.abspath(os.fspath(value)) if value else ""
    except TypeError:
        raise UsageError(f"a path is wanted, not {type(value).__name__}") from None


@frozen
class Identity:
    """Who the model is, in the host's words."""

    text: str = field(converter=_text)

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        """Offer the section "identity"."""
        register(PromptSection(name="identity", rank=IDENTITY_RANK, render=lambda: self.text))


@frozen(kw_only=True)
class Rules:
    """What the model has to keep to: a `text`, or the file at `path` as it is at the beginning of each turn.

    A file that is missing has no rules. One that cannot be read is recorded as `plugin/error`, and its rules stay
    as the model was given them last.
    """

    text: str = field(default="", converter=_text)
    path: str = field(default="", converter=_path)

    def __attrs_post_init__(self) -> None:
        if bool(self.text) == bool(self.path):
            raise UsageError("rules are either a text or the path of a file")

    def render(self) -> str:
        """The rules by now."""
        if self.text:
            return _cut(self.text)
        try:
            # A pipe in its place must not keep the turn waiting.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return ""
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"{self.path} is not a file")
            raw = file.read(4 * (RULES_MAX_CHARS + 1))  # no character takes more bytes
        return _cut(raw.decode(errors="replace"))

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        """Offer the section "rules"."""
        register(PromptSection(name="rules", rank=RULES_RANK, render=self.render))


def _cut(text: str) -> str:
    text = text.strip()
    if len(text) <= RULES_MAX_CHARS:
        return text
    return f"{text[:RULES_MAX_CHARS]}\n[only the first {RULES_MAX_CHARS} characters of the rules are given here]"


@frozen
class Workspace:
    """What is in `folder` and in the folders of it: names only, hidden ones and those that fit `leave_out` not.

    It is told again when a name has come or gone, not when a file has changed.
    """

    folder: str = field(converter=_path)
    leave_out: tuple[str, ...] = field(default=("*.db-*",), converter=tuple, kw_only=True)

    def render(self) -> str:
        """The listing by now; "" when the folder is gone or empty."""
        lines: list[str] = []
        walk = Walk(Guarded(frozenset(), frozenset()), ("**",), depth=2)
        try:
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        try:
            with closing(walk.below(fd, "")) as found:
                for entry in found:
                    if any(fnmatchcase(entry.name, pattern) for pattern in self.leave_out):
                        continue
                    if len(lines) == ENTRIES_MAX:
                        lines.append("[and more]")
                        break
                    lines.append(shown(entry.path) + ("/" if stat.S_ISDIR(entry.status.st_mode) else ""))
        finally:
            os.close(fd)
        return "In the workspace:\n" + "\n".join(lines) if lines else ""

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        """Offer the section "workspace"."""
        register(PromptSection(name="workspace", rank=WORKSPACE_RANK, render=self.render, kind="runtime"))
