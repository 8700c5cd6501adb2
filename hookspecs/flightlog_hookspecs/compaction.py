"""Compactors: how a conversation that no longer fits is made shorter."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Compactor:
    """How the context is made shorter before a request that would be too long; the kernel does it.

    Old results are said in one line each; where that is not enough, the session's model is asked by the `instruction`
    for a summary, which then stands for the messages. What was replaced stays in the log. The last `keep_steps`
    finished steps stay as they are, and fewer of them only where it is too long all the same.

    Of several the last registered counts, a session's before its kernel's.
    """

    name: str
    """What the log calls it. Unique in its scope."""
    instruction: str = ""
    """What the model is asked for behind the whole conversation; "" for no summaries."""
    keep_steps: int = 8
    """So many finished steps stay as they are."""
    note: str = ""
    """What the model is told with each replacement: how it can see the original, say."""
