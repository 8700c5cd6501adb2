"""How a request is put together from its fragments, whatever the provider.

A fragment is lines of JSON (which has no line breaks of its own). The first line of the head's is its
*tag*: it names whose state of the provider may be sent behind it. A line of a message that starts with
a tag and a tab is such state, and is left out behind a head with another tag. So a model that is
switched never gets what is bound to another, and each head always gets the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from flightlog_hookspecs import ThinkingBlock
from flightlog_plugins.wire.json_text import dumps, is_object, object_or_none


def tag(adapter: str, bound_to: str) -> str:
    """The tag of state that only a head with the same `bound_to` may be given back."""
    return f"{adapter}-{sha256(bound_to.encode()).hexdigest()[:16]}"


def kept(tag: str, **state: object) -> str:
    """`state` of a provider as a block or a message keeps it."""
    return dumps({"by": tag, **state})


def state_of(adapter: str, replay: str) -> tuple[str, dict[str, Any]] | None:
    """Tag and state in `replay`, None unless this adapter kept it and a server can read it."""
    state = object_or_none(replay) if is_object(replay) else None
    by = state.pop("by", None) if state else None
    if state is None or not isinstance(by, str) or by.rpartition("-")[0] != adapter or not by.isprintable():
        return None
    return by, state


def block_state(adapter: str, block: ThinkingBlock) -> tuple[str, dict[str, Any]] | None:
    """`state_of` a thinking block."""
    return state_of(adapter, block.replay)


def fragment(*lines: str) -> bytes:
    """A fragment of these lines."""
    return "\n".join(lines).encode()


def opened(head: bytes) -> tuple[str, str]:
    """The tag and the JSON of a head's fragment."""
    own, _, text = head.decode().partition("\n")
    return own, text


def sendable(own: str, part: bytes) -> Iterator[str]:
    """The lines of a message's fragment that may be sent behind a head with tag `own`."""
    for line in part.decode().split("\n"):
        bound_to, tab, text = line.partition("\t")
        if not tab:
            yield line
        elif bound_to == own:
            yield text


def messages_of(fragments: Sequence[bytes]) -> Iterator[list[str]]:
    """The sendable lines of each message."""
    own, _ = opened(fragments[0])
    for index in range(1, len(fragments)):
        yield list(sendable(own, fragments[index]))
