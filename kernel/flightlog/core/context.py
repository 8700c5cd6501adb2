"""What prompt sections say, and what the model has to be told when that changes.

Static sections are parts of a head's system text. Everything that changes after that head was sent, and
all runtime sections, reach the model as appended messages: what was sent is never rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from flightlog.core.state import State
from flightlog_hookspecs.content import Block, TextBlock
from flightlog_hookspecs.events import RequestHeader, SectionSpan, UserMessage

HOST_SECTION: Final = "system"
"""The host's own system text, which comes before all sections."""

_BETWEEN: Final = "\n\n"


def joined(texts: Mapping[str, str]) -> tuple[str, tuple[SectionSpan, ...]]:
    """The system text that sections with these `texts` make, in their order, and where each stands in it."""
    spans: list[SectionSpan] = []
    system = ""
    for name, text in texts.items():
        if text:
            start = len(system) + len(_BETWEEN) if spans else 0
            spans.append(SectionSpan(name=name, start=start, chars=len(text)))
            system += (_BETWEEN if len(spans) > 1 else "") + text
    return system, tuple(spans)


def sections_in(header: RequestHeader) -> dict[str, str]:
    """The texts of the sections that the system text of `header` is made of."""
    system = header.head.system
    return {span.name: system[span.start : span.start + span.chars] for span in header.sections}


def told(content: tuple[Block, ...]) -> str:
    """What a context message says of its section: the new text, "" when it no longer applies."""
    last = content[-1]
    return last.text if len(content) > 1 and isinstance(last, TextBlock) else ""


def given(state: State) -> dict[str, str]:
    """The text of each section as the model has it: what a message said last, else what the system text says."""
    return {**(sections_in(state.header) if state.header else {}), **state.context}


def news(given: Mapping[str, str], texts: Mapping[str, str]) -> list[tuple[str, tuple[Block, ...]]]:
    """The messages, as section and content, for a model that was `given` other texts than these.

    `texts` holds every section that there is; one that it does not hold no longer applies.
    """
    gone = {name: "" for name in given if name not in texts}
    return [(name, _message(name, text)) for name, text in {**gone, **texts}.items() if text != given.get(name, "")]


def not_last(state: State, last: Collection[str], newest: int) -> dict[str, str]:
    """What messages said last of the sections `last`, where something stands behind it, up to row `newest`."""
    texts = {name: text for name, text in state.context.items() if name in last and text}
    return {} if any(state.context_rows[name] == newest for name in texts) else texts


def _message(name: str, text: str) -> tuple[Block, ...]:
    if not text:
        return (TextBlock(text=f"The context {name!r} no longer applies."),)
    return (TextBlock(text=f"The context {name!r} is now:\n"), TextBlock(text=text))


def fits(message: UserMessage) -> bool:
    """Whether a message that names a section is one that `news` makes."""
    texts = all(isinstance(block, TextBlock) for block in message.content)
    return message.source == "context" and texts and len(message.content) in (1, 2)


def spans_fit(header: RequestHeader) -> bool:
    """Whether the spans of `header` stand in its system text in order, apart, each section once."""
    end = 0
    for span in header.sections:
        if span.start < end or span.chars < 1:
            return False
        end = span.start + span.chars
    return end <= len(header.head.system) and len({span.name for span in header.sections}) == len(header.sections)
