"""Which addresses of the web may be asked for: those that are public, unless the host allows others by name."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from attrs import frozen

from flightlog_hookspecs.errors import ToolError, UsageError

URL_MAX_CHARS: Final = 2000
PORTS: Final = {"http": 80, "https": 443}
_KEPT: Final = "!#$%&'()*+,/:;=?@[]~"
"""What is not escaped in a path or query besides letters and digits; % since what is escaped already stays."""

_HOST: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._:")


@frozen(kw_only=True)
class Address:
    """A URL taken apart: `host` in ASCII and small letters, without brackets; `target` is its path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """Host and port as a URL has them, the scheme's own port left out."""
        return _authority(self.host, "" if self.port == PORTS[self.scheme] else f":{self.port}")

    @property
    def place(self) -> str:
        """Host and port, as `allowance` takes them."""
        return _authority(self.host, f":{self.port}")

    @property
    def url(self) -> str:
        """The URL, without what stood behind #. Plain ASCII without spaces."""
        return f"{self.scheme}://{self.authority}{self.target}"

    def at(self, ip: str) -> str:
        """The URL that leads to the same place at `ip`, without asking for a name again."""
        return f"{self.scheme}://{_authority(ip, f':{self.port}')}{self.target}"


def _authority(host: str, port: str) -> str:
    return f"[{host}]{port}" if ":" in host else f"{host}{port}"


def parsed(url: str, base: str = "", max_chars: int = URL_MAX_CHARS) -> Address:
    """The address that `url` names, seen from `base`. Raises `ToolError` for one that is not to be asked for."""
    if len(url) > max_chars:
        raise ToolError(f"the URL has {len(url)} characters; it may have {max_chars}")
    if any(ord(char) <= 32 or ord(char) == 127 or char == "\\" for char in url.strip(" ")):
        raise ToolError("the URL holds spaces, control characters or backslashes")
    try:
        parts = urlsplit(urljoin(base, url.strip(" ")))
        if parts.scheme not in PORTS:
            raise ToolError(f"a URL of the web begins with http:// or https://, not with {parts.scheme or url[:20]!r}")
        if parts.username is not None or parts.password is not None:
            raise ToolError("the URL holds a user name or password; that is not sent")
        host, port = (parts.hostname or "").rstrip("."), parts.port
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
        path, asked = quote(parts.path or "/", safe=_KEPT), quote(parts.query, safe=_KEPT)
    except ValueError as error:  # of ports, brackets and names
        raise ToolError(f"the URL cannot be understood: {error}") from None
    if not ascii_host or port == 0 or not set(ascii_host) <= _HOST:
        raise ToolError("the URL names no host that there could be")
    target = f"{path}?{asked}" if asked else path
    return Address(scheme=parts.scheme, host=ascii_host, port=port or PORTS[parts.scheme], target=target)


def is_public(ip: str) -> bool:
    """Whether `ip` belongs to the open internet. Those that carry another address in them do not."""
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    match address:
        case IPv6Address():
            wrapped = address.ipv4_mapped or address.sixtofour or address.teredo
            return not (wrapped or address.is_site_local or address.scope_id)
        case IPv4Address():
            return True


def allowance(host: str) -> tuple[str, int | None]:
    """A host that the host application allows, as "name", "name:port", "127.0.0.1:8080" or "[::1]:8080"."""
    try:
        address = urlsplit(f"//{host}")
        name, port = address.hostname, address.port
    except (ValueError, TypeError):
        name, port = None, None
    if not isinstance(host, str) or not name or address.path or address.query or "@" in host:
        raise UsageError(f"allow holds {host!r}; it must hold hosts, as 'wiki.example' or '127.0.0.1:8080'")
    return name.rstrip("."), port


def is_allowed(address: Address, allowed: Collection[tuple[str, int | None]]) -> bool:
    """Whether the host allows it, wherever its name leads."""
    return (address.host, None) in allowed or (address.host, address.port) in allowed
