"""What an author says of an adapter and its provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen

from flightlog_hookspecs import Adapter, Block, FinishReason, Usage
from flightlog_hookspecs.errors import FailureKind

GARBAGE = b'data: {"type": "content_block_st\n\n'
"""An event whose JSON breaks off."""


@frozen
class Frame:
    """One piece of a recorded stream, as the provider sends it at once."""

    raw: bytes
    """What goes over the wire."""
    delta: str = ""
    """The words, thinking or argument text that it brings, which must arrive before the next frame is sent."""


def _frames(given: Sequence[Frame | bytes]) -> tuple[Frame, ...]:
    return tuple(frame if isinstance(frame, Frame) else Frame(frame) for frame in given)


@frozen(kw_only=True)
class Recording:
    """A stream of the provider, and what it must come to: an answer, or a failure.

    In `content`, thinking without `replay` and calls without `call_id` stand for such with any.
    A model without a wire has recordings without frames.
    """

    name: str
    """Stands in the ids of the tests."""
    frames: tuple[Frame, ...] = field(default=(), converter=_frames)
    """The stream in order, the ones that bring words as `Frame`."""
    content: tuple[Block, ...] = ()
    """The blocks of the answer."""
    finish: FinishReason = "stop"
    """Why the model stopped."""
    usage: Usage | None = None
    """Its tokens; None: not looked at."""
    failure: FailureKind | None = None
    """The kind of the failure that it comes to, in place of an answer."""

    def __attrs_post_init__(self) -> None:
        if not self.content and self.failure is None:
            raise ValueError(f"recording {self.name!r}: give the content of the answer, or the kind of the failure")
        if self.frames and self.failure is None and not any(frame.delta for frame in self.frames):
            raise ValueError(
                f"recording {self.name!r}: no frame brings words, so nothing can be said about streaming: "
                "write Frame(raw, delta) for those that do"
            )


@frozen(kw_only=True)
class AdapterCase:
    """An adapter, and the recordings that it must make sense of."""

    name: str
    """What stands before the colon of a model's name."""
    adapter: Callable[[str], Adapter]
    """A new adapter for a provider at this address (`http://127.0.0.1:PORT`)."""
    model: str
    """The part behind the colon; `{url}` in it stands for the address."""
    recordings: Sequence[Recording]
    """Each is broken off at every frame, so a dozen frames tell as much as a hundred; the shortest answer at
    every byte. The first answer should hold all that there is."""
    body: Callable[[Sequence[bytes]], bytes] | None = None
    """The fixed rule that makes the body from the fragments. None: they stand in it as they are, in order."""
    garbage: Sequence[bytes] = (GARBAGE,)
    """Frames that are none of the provider's."""
    statuses: Mapping[int, frozenset[FailureKind]] = {}
    """What an error status means, where this provider means something else by it."""
    patience_s: float = 30.0
    """How long anything may take before it counts as hanging. Only adapters that hang wait for it."""
