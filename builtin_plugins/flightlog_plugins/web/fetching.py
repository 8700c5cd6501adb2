"""Fetching over HTTP: nothing but public addresses, and bounds on everything.

A name is resolved once for each hop, every address that it has is checked, and the connection goes to one that was
checked: a name that leads elsewhere a moment later leads nowhere. Certificates are checked against the name.
Proxies of the environment are not used, since then they would choose the address.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import trio
from attrs import define, field

from flightlog_hookspecs.errors import ToolError, UsageError
from flightlog_plugins.web.addresses import URL_MAX_CHARS, Address, allowance, is_allowed, is_public, parsed
from flightlog_plugins.web.pages import Page

AGENT: Final = "flightlog"
ADDRESSES_MAX: Final = 4
"""As many addresses of a name are tried."""
CLOSING_MAX_S: Final = 1.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of `host`, in the order of the system's preference. Raises `OSError`."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _hosts(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise UsageError("allow is a list of hosts, not a string")
    return tuple(given)


@define(eq=False, kw_only=True)
class HttpFetch:
    """Fetches with httpx (`pip install 'flightlog[web]'`).

    `allow` names hosts that may be reached although they are not public: "wiki.internal", "127.0.0.1:8080".
    What is over `max_bytes` is cut off while it is read. `limit_s` bounds all of it, redirects included.
    Raises `UsageError` for what makes no sense.
    """

    allow: tuple[str, ...] = field(default=(), converter=_hosts)
    max_bytes: int = 1_000_000
    max_redirects: int = 5
    max_url_chars: int = URL_MAX_CHARS
    limit_s: float = 20.0
    resolve: Resolve = field(default=resolved, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """How certificates are checked; None for the usual way."""
    _allowed: frozenset[tuple[str, int | None]] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if min(self.max_bytes, self.max_url_chars) < 1 or self.max_redirects < 0 or not 0 < self.limit_s < float("inf"):
            raise UsageError(
                "max_bytes and max_url_chars are at least 1, max_redirects at least 0, limit_s more than 0"
            )
        self._allowed = frozenset(map(allowance, self.allow))

    async def fetch(self, url: str) -> Page:
        """The page at `url`. Raises `ToolError` for one that may not or cannot be had."""
        address = parsed(url, max_chars=self.max_url_chars)
        with trio.move_on_after(self.limit_s):
            httpx = await trio.to_thread.run_sync(_imported)
            self.tls = self.tls or await trio.to_thread.run_sync(httpx.create_ssl_context)
            for _ in range(self.max_redirects + 1):
                ips = await self._checked(address)
                answer = await self._asked(httpx, address, ips)
                if isinstance(answer, Page):
                    return answer
                address = parsed(answer, address.url, self.max_url_chars)
            raise ToolError(f"{url} redirects more than {self.max_redirects} times")
        raise ToolError(f"{address.url} did not answer within {self.limit_s:g} s")

    async def _checked(self, address: Address) -> Sequence[str]:
        """Where to connect to."""
        try:
            ips = await self.resolve(address.host, address.port)
        except (OSError, UnicodeError):
            ips = []
        if not ips:
            raise ToolError(f"there is no host {address.host}")
        if not is_allowed(address, self._allowed) and not all(map(is_public, ips)):
            raise ToolError(f"{address.url} is not reached: {address.host} is not on the public internet")
        return ips[:ADDRESSES_MAX]

    async def _asked(self, httpx: Any, address: Address, ips: Sequence[str]) -> Page | str:
        """The page, or where it redirects to. The first address that can be connected to counts."""
        headers = {"Host": address.authority, "User-Agent": AGENT, "Accept-Encoding": "identity", "Accept": "*/*"}
        # A client for each hop: a connection that was made for one name is never used for another.
        timeout = httpx.Timeout(None, connect=self.limit_s / ADDRESSES_MAX)
        async with httpx.AsyncClient(verify=self.tls, trust_env=False, timeout=timeout) as client:
            for ip in ips:
                request = client.build_request(
                    "GET", address.at(ip), headers=headers, extensions={"sni_hostname": address.host}
                )
                try:
                    response = await client.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    refused = error
                except httpx.HTTPError as error:
                    raise _failed(address, error) from None
                else:
                    try:
                        return await self._read(address, response)
                    except httpx.HTTPError as error:
                        raise _failed(address, error) from None
                    finally:
                        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_MAX_S):
                            await response.aclose()
        raise _failed(address, refused)

    async def _read(self, address: Address, response: Any) -> Page | str:
        if response.status_code in _REDIRECTS and "location" in response.headers:
            return str(response.headers["location"])
        if not 200 <= response.status_code < 300:
            raise ToolError(f"{address.url} answers with status {response.status_code}")
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            # Unpacked it might be any size.
            raise ToolError(f"{address.url} answers in the encoding {encoding[:40]!r}, which was not asked for")
        data = bytearray()
        # Only a cancel from the innermost of the transport's generators ends them all.
        with trio.CancelScope() as enough:
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > self.max_bytes:
                    enough.cancel()
        return Page(
            url=address.url,
            content_type=response.headers.get("content-type", ""),
            data=bytes(data[: self.max_bytes]),
            cut=len(data) > self.max_bytes,
        )


def _failed(address: Address, error: BaseException) -> ToolError:
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return ToolError(f"{address.url} cannot be fetched: {said[:300]}")


def _imported() -> Any:
    try:
        import httpx
    except ImportError:
        raise ToolError("the host lacks the package httpx: pip install 'flightlog[web]'") from None
    return httpx
