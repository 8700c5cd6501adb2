"""Every bound of the kernel, in one place. Units stand last in the names."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen, validators

BLOB_MIN_BYTES: Final = 64 * 1024
"""A payload larger than this moves to the content-addressed blob table."""

FILE_MAX_BYTES: Final = 20 * 1024 * 1024
"""The largest file a message can hold: written in base64, providers take some 30 MB a request."""

FILE_NAME_MAX_CHARS: Final = 255

PROGRESS_MAX_CHARS: Final = 1000
"""As much of what a running tool says of how far it is stands in the log."""

PROGRESS_EVERY_S: Final = 0.1
"""It does so at most this often."""

PROGRESS_ROWS_MAX: Final = 10_000
"""And at most so many times for one call."""

EXCERPT_CHARS: Final = 1000
"""As much of a text that moved to the blob table stays in its row, for views."""

BUSY_WAIT_MAX_S: Final = 30.0
"""How long a commit waits for another process's write lock before the kernel stops."""

BUSY_POLL_S: Final = 0.002

SLOW_SYNC_S: Final = 0.002
"""A disk whose syncs take longer is waited for in a thread, whose price is a tenth of that."""

DATABASE_WAIT_MAX_S: Final = 30.0
"""How long a transactional call waits for the write lock of its database, or for word that its commit ended."""

DATABASE_POLL_S: Final = 0.005

LIVE_RING_RECORDS: Final = 256
"""The newest records a session keeps in memory for its live readers; who is behind them reads the file."""

LIVE_PAGE_ROWS: Final = 64
"""Rows a live reader takes at a time."""

LIVE_POLL_S: Final = 0.01
"""How often a live reader looks for what other processes have written."""

PROVE_PAGE_MESSAGES: Final = 64
"""Messages that are proven between two rounds of the loop, when a request has many new ones."""

READ_PAGE_ROWS: Final = 256
"""Rows that are read at a time, so that no read snapshot outlives a few milliseconds."""

LOAD_PAGE_ROWS: Final = 64
"""Rows that are checked between two rounds of the loop, when a session is opened."""

SNAPSHOT_MIN_ROWS: Final = 1000
"""A snapshot of a session is this many rows behind the one before, at least: reading as many takes some 30 ms."""

SNAPSHOT_CHARS_PER_ROW: Final = 40
"""A snapshot has at most so many characters for each row since the one before: a tenth of what a row takes."""

QUERIES_AT_ONCE: Final = 8
"""Queries of one kernel that run at the same time; further ones wait."""

QUERY_MAX_ROWS: Final = 10_000
QUERY_MAX_S: Final = 5.0
"""How much a query may bring and how long it may take unless its caller says otherwise."""

SESSION_NAME_MAX_CHARS: Final = 200

ANSWER_EVENTS_MAX: Final = 1_000_000
"""An answer has so many events beside its deltas at most: more than the longest answers have tokens, since some
providers count with each of them."""

CHILD_GOES_ON_MAX: Final = 3
"""How often a background child whose turn was cut off is told to go on, before that is what came of it."""

CHILD_POLL_S: Final = 0.5
"""How often a child that somebody else has open is looked at."""

CHILD_WAIT_S: Final = 3600.0
"""How long a call waits for its child unless the subagent says otherwise."""

CHILD_WIND_DOWN_S: Final = 60.0
"""A call that waits for a child is cut off this long after the child was cancelled for being late."""

WORK_POLL_S: Final = 0.05
"""How often a worker looks for new tasks and letters."""

ORPHAN_POLL_S: Final = 0.5
"""How often a worker looks whether the owner of a task still lives."""

TIME_POLL_US: Final = 500_000
"""How often it is looked whether a task that has a card of time uses it up, in microseconds."""

LOOK_AT_CLOCK_S: Final = 1.0
"""The longest wait for a time of day without another look at the clock."""

ALIKE_MAX_CHARS: Final = 4000
"""Longer outputs of two steps are alike only when they are equal: comparing them would take too long."""

ALIKE_MIN_RATIO: Final = 0.95
"""Outputs that have this much in common bring nothing new."""

TASK_NO_PROGRESS_STEPS: Final = 3
"""A task ends when so many steps in a row do the same and bring nothing new, unless its session's limits say else."""

ACTION_MAX_CHARS: Final = 200
"""As much of a repeated call is named."""

RESYNC_READS_MAX: Final = 16
"""So many reads are asked again when a task is resumed, the newest first."""

RESYNC_ANSWER_MAX_CHARS: Final = 4000
"""As much of a new answer the model is told then; it can ask for all of it."""

RESYNC_GOAL_MAX_CHARS: Final = 2000
"""As much of the goal it is reminded of."""

FACTS_MAX: Final = 50
FACTS_MAX_CHARS: Final = 8000
"""As much stands in a session's working memory, names and texts together. Part of the law: may grow, never shrink."""

FACT_NAME_MAX_CHARS: Final = 100

RETRY_WISH_MAX_S: Final = 24 * 3600.0
"""The longest delay a provider may ask for."""


def _positive(default: float) -> float:
    return field(default=default, validator=validators.gt(0))


def _count(default: int) -> int:
    return field(default=default, validator=[validators.instance_of(int), validators.gt(0)])


_REPEATED: Final = validators.optional([validators.instance_of(int), validators.gt(1)])


@frozen(kw_only=True)
class Limits:
    """What a session may use. Pass one to `kernel.session(..., limits=Limits(...))`."""

    delta_flush_ms: int = _count(30)
    """A streamed delta is in the log at most this late."""
    steps_per_turn: int = _count(100)
    """A turn that needs more steps ends with reason `max_steps`. A task's own limit counts in its place."""
    no_progress_steps: int | None = field(default=None, validator=_REPEATED)
    """A turn ends with reason `no_progress` when so many steps in a row do the same and bring nothing new.

    None: never; in the session of a task, after three."""
    attempts_per_step: int = _count(3)
    """Attempts at one request, the first included, whoever asks for more. A plugin decides whether there are any."""
    input_budget_ratio: float = field(default=0.75, validator=[validators.gt(0), validators.le(1)])
    """A request may have so much of the model's window, as far as that is known; the rest is for the answer."""
    context_tokens: int | None = field(
        default=None, validator=validators.optional([validators.instance_of(int), validators.gt(0)])
    )
    """A request may have so many tokens, whatever the model can take. None: only its window counts."""
    model_idle_s: float = _positive(600.0)
    """An attempt that yields nothing for this long fails as `timeout`."""
    parallel_tools: int = _count(8)
    cancel_grace_s: float = field(default=2.0, validator=validators.ge(0))
    """After a cancel, running tools get this long to finish before they are cancelled."""
    tool_output_max_chars: int = _count(32_000)
    """A longer result is spilled to a blob; the model sees its beginning and end."""
    tool_output_max_bytes: int = _count(64 * 1024 * 1024)
    """A result larger than this is an error result and is not kept."""
    timers_open: int = _count(32)
    """How many timers of a session may be still to fire."""
    subagent_depth: int = field(default=3, validator=[validators.instance_of(int), validators.ge(0)])
    """How many levels of children there may be below a session without a parent."""
    subagents_at_once: int = _count(16)
    """How many children of a session may be at work at the same time, those in the background and those waited for."""
