"""The error tree. Every error says what happened, where, whose fault it is and what to do.

Control flow (`trio.Cancelled`) and `InvariantViolation` stand outside the tree on purpose: a host
that catches `FlightlogError` must never catch a bug of the kernel with it.
"""

from __future__ import annotations

from typing import Final, Literal

FailureKind = Literal[
    "auth",
    "bad_request",
    "context_overflow",
    "rate_limit",
    "overloaded",
    "server",
    "transport",
    "timeout",
    "cut",
    "empty",
    "refusal",
    "filter",
    "length",
    "protocol",
    "adapter",
    "interrupted",
]

RETRYABLE: frozenset[FailureKind] = frozenset(
    {"rate_limit", "overloaded", "server", "transport", "timeout", "cut", "empty", "interrupted"}
)


_VERIFY_AND_REPAIR: Final = (
    "`flightlog verify` lists every violation; restore a backup, or keep what is sound with `flightlog repair`."
)


class FlightlogError(Exception):
    """Root of everything a host may want to catch."""


class UsageError(FlightlogError):
    """The caller's fault: a bad argument or a call at the wrong time. Nothing was changed."""


class BadPayload(UsageError):
    """A value that JSON cannot carry without loss. `path` says where in it (`$.a[3]`)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreError(FlightlogError):
    """The log file could not be read or written."""


class NotAFlightlog(StoreError):
    """The path holds something that is not a flightlog file. It was not changed."""


class SchemaTooNew(StoreError):
    """The file, or a row in it, was written by a newer version. Upgrade flightlog to use it."""


class ReadOnly(StoreError):
    """The file or its folder cannot be written. It was not changed."""


class NotCreated(ReadOnly):
    """A new file, such as a backup, an export or a log, cannot be made where it is to be. Nothing was changed."""


class DiskFull(StoreError):
    """The disk is full. Nothing acknowledged is lost; free space, then reopen."""


class LogCorrupt(StoreError):
    """The log breaks a rule, so it was refused as it is. Names the session, the row and the rule.

    `session` is "*" where it is the file that is damaged, and not one session of it.
    """

    def __init__(
        self, session: str, seq: int | None, rule: str, detail: str, *, advice: str = _VERIFY_AND_REPAIR
    ) -> None:
        place = f", seq {seq}" if seq is not None else ""
        where = f"session {session!r}{place}" if session != "*" else "the file"
        super().__init__(f"{where}: {detail} (rule {rule}). The file was not changed; {advice}")
        self.session = session
        self.seq = seq
        self.rule = rule
        self.detail = detail


class ImportRefused(StoreError):
    """An export that cannot be taken in as it is. Names its line and the rule; nothing was changed."""

    def __init__(self, line: int, rule: str, detail: str) -> None:
        super().__init__(f"line {line}: {detail} (rule {rule}). Nothing was imported.")
        self.line = line
        self.rule = rule


class HeadMismatch(StoreError):
    """The log is shorter than, or differs from, what was acknowledged earlier: it was rolled back."""


class SessionBusy(StoreError):
    """Another live process or kernel drives this session. It may still be read."""


class FileInUse(StoreError):
    """Another process, or another kernel of this one, has the file open. Nothing was changed."""


class Fenced(StoreError):
    """A newer owner has taken this session over; this one may not write any more."""


class FileReplaced(StoreError):
    """The database file was moved, deleted or replaced while it was open. Reopen the right file."""


class StoreStopped(StoreError):
    """An earlier write failed, so the kernel stopped before any further effect. Reopen to resume."""


class ForkedProcess(StoreError):
    """The kernel was opened in the parent of this process. Open your own kernel in the child."""


class UnsupportedPlatform(StoreError):
    """The platform or file system lacks the locks that keep a log safe."""


class ProviderError(FlightlogError):
    """A model request failed. Adapters raise it; `retryable` follows from `kind` unless given.

    `retry_after_s` is the provider's own wish in seconds, or None.
    """

    def __init__(
        self, kind: FailureKind, message: str, *, retryable: bool | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.retryable = kind in RETRYABLE if retryable is None else retryable
        self.retry_after_s = retry_after_s


class ToolError(FlightlogError):
    """Raised by a tool body to fail its call with a message for the model, without a traceback."""


class OutcomeUnknown(ToolError):
    """Raised by a tool body that cannot know whether its call took effect: an answer that never came, for one.

    The call's outcome is `unknown` and it is in doubt, as after a crash, unless its effect may be repeated.
    """


class PluginError(FlightlogError):
    """A plugin broke the contract. Names the plugin and the hook."""

    def __init__(self, plugin: str, hook: str, message: str) -> None:
        super().__init__(f"plugin {plugin!r}, {hook}: {message}")
        self.plugin = plugin
        self.hook = hook


class LimitExceeded(FlightlogError):
    """A limit set by the host was reached before the work was done."""


class InvariantViolation(Exception):
    """A bug of the kernel or of a plugin: what is about to happen does not follow from the log.

    Raised *before* the effect. Not a `FlightlogError`: never catch it to go on.
    """
