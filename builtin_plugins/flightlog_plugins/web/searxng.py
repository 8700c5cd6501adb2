"""Searching with SearXNG, a search engine that a host runs itself.

Its interface: https://docs.searxng.org/dev/search_api.html
Its `settings.yml` must list `json` under `search: formats:`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from attrs import define, field

from flightlog_hookspecs.errors import ToolError, UsageError
from flightlog_plugins.web.addresses import parsed
from flightlog_plugins.web.fetching import HttpFetch
from flightlog_plugins.web.pages import Hit

URL_MAX_CHARS: Final = 8000
"""A character of a query takes up to twelve in a URL, and what a tool takes must arrive."""


@define(eq=False)
class SearXng:
    """A backend of `search_web`. `address` is where the instance is, which may be the loopback: "http://127.0.0.1:8888".

    `options` go into each request: {"language": "en", "categories": "general"}.
    """

    address: str
    options: Mapping[str, str] = field(factory=dict, converter=dict, kw_only=True)
    _http: HttpFetch = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        try:
            at = parsed(self.address)
        except ToolError as error:
            raise UsageError(str(error)) from None
        self._http = HttpFetch(allow=[at.place], max_url_chars=URL_MAX_CHARS)

    async def search(self, query: str) -> Sequence[Hit]:
        """What the instance finds."""
        asked = urlencode({**self.options, "q": query, "format": "json"})
        page = await self._http.fetch(f"{self.address.rstrip('/')}/search?{asked}")
        try:
            answer: Any = json.loads(page.data)
            return [
                Hit(url=str(one["url"]), title=str(one.get("title", "")), excerpt=str(one.get("content") or ""))
                for one in answer["results"]
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ToolError(f"the search engine's answer is not what SearXNG gives: {type(error).__name__}") from None
