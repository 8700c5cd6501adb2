"""Adapters: how a model is reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from attrs import frozen

from flightlog_hookspecs.events import Head, Message
from flightlog_hookspecs.stream import BlockEvent


@frozen(kw_only=True)
class Request:
    """One request: the head, the messages in order, and both as the adapter encoded them.

    `fragments[0]` is the encoded head, `fragments[1:]` the encoded messages. What is sent must be
    made of the fragments alone, joined by a fixed rule: their hash is in the log.
    """

    head: Head
    """System text, tools, model and parameters."""
    messages: Sequence[Message]
    """In order. Files are without their bytes, which only `encode` gets."""
    fragments: Sequence[bytes]
    """The encoded head, then each encoded message."""


@runtime_checkable
class Adapter(Protocol):
    """A provider. Models are named `adapter:model`; everything behind the colon is the adapter's.

    One that holds connections may have `async aclose()` beside these: it is called when the adapter is
    taken back, at the latest when its kernel is closed. One with `bound_thinking = True` is not given the thinking in
    answers from before the conversation was made shorter: its provider binds it to what stood before it.

    `window(model) -> int | None` beside these says how many tokens a request and its answer may have together, so that
    the context can be kept within it; None, as without it, when that is not known.
    """

    @property
    def name(self) -> str:
        """The part before the colon; unique in its scope."""
        ...

    def encode(self, part: Head | Message) -> bytes:
        """`part` as it goes over the wire. Pure and deterministic: it is called again in a proof.

        It is called once per part and session, not once per request, so that a long session stays
        linear. A `FileBlock` in a user's message or a tool's result has its bytes here. One that the provider
        does not take is best told of in words, by its `label`: the conversation would be refused for ever.
        """
        ...

    def stream(self, request: Request, attempt: int) -> AbstractAsyncContextManager[AsyncIterator[BlockEvent]]:
        """Send `request` and yield block events as they arrive; leaving the context hangs up.

        Raises `ProviderError` for every failure, before or in mid-stream. Retrying is the kernel's.
        """
        ...
