"""Redactions: what is kept out of the log, and so from the model."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen(kw_only=True)
class Redaction:
    """A function that every text is put through which comes in from the world, before it is written anywhere.

    That is: what tools return and raise, in whole and before it is cut or spilled; what prompt sections and the
    host's system text say; what hooks add, ask and refuse; what adapters and plugins say went wrong. It is not:
    what the model itself wrote, its arguments and the provider's replay state included, and what people sent.
    Both stay word for word, since the log must show what the model was sent and what it said. Arguments that a
    guard puts in place of the model's stay, too: the call runs with them.

    It is called on the kernel's own thread, so it must be quick. When it raises, or returns no string, the text
    is withheld as a whole, and a note that names the redaction stands in its place.
    """

    name: str
    """What the note calls it."""
    body: Callable[[str], str]
    """Takes a text of any length, returns it without what must not be written. Called again on its own result."""
