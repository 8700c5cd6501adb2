"""What the web answers with: pages and hits, and whoever fetches and finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen


@frozen(kw_only=True)
class Page:
    """What a URL led to. `cut` says that there was more of it than `data`."""

    url: str
    """Where it came from in the end, after redirects."""
    content_type: str
    """As the server states it, "" for nothing."""
    data: bytes
    cut: bool = False


@frozen(kw_only=True)
class Hit:
    """Something that a search found."""

    url: str
    title: str
    excerpt: str


class Fetch(Protocol):
    """Gets pages. One of your own answers for where it connects to; `HttpFetch` is the one in the box."""

    async def fetch(self, url: str, /) -> Page:
        """The page at `url`. Raises `ToolError` saying why there is none."""


class Search(Protocol):
    """Finds pages."""

    async def search(self, query: str, /) -> Sequence[Hit]:
        """The hits, the best first. Raises `ToolError`."""
