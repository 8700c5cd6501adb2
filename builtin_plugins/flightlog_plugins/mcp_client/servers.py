"""What the host says about a server: how it is reached, what it is given, how far it is trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from attrs import field, frozen

from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.secrets import parts_of_secret, secrets_among

_SECRET_HEADERS: Final = (
    "AUTHORIZATION",
    "PROXY-AUTHORIZATION",
    "COOKIE",
    "*KEY*",
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
)


def _strings(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _pairs(given: Mapping[str, str]) -> dict[str, str]:
    return dict(given)


@frozen(kw_only=True)
class Server:
    """What holds for every kind of server.

    A call may take `limit_s` seconds; connecting, the list of tools included, `connect_s`. What a `trusted` server
    says only reads has the effect "read", so that it may be repeated and runs beside others; of all others
    everything is "external", whatever they say.
    """

    limit_s: float = 60.0
    connect_s: float = 20.0
    trusted: bool = False

    def __attrs_post_init__(self) -> None:
        if not 0 < self.connect_s < self.limit_s:
            raise UsageError("connect_s must be over 0 and less than limit_s: a call may have to wait for a connection")


@frozen
class Stdio(Server):
    """A server that is started here: it reads requests from its standard input and writes answers to its output.

    `command` are its parts, `folder` is where it runs, "" for the host's own. It sees the variables that every command
    needs, those that `pass_env` names (patterns as in a shell), and `env`. It ends with its kernel, and so does all
    that it started, unless it gets rid of its supervisor on purpose. What it writes to its standard error is shown only
    where an error says why it failed.
    """

    command: tuple[str, ...] = field(converter=_strings)
    env: Mapping[str, str] = field(factory=dict, converter=_pairs, repr=False, kw_only=True)
    pass_env: tuple[str, ...] = field(default=(), converter=_strings, kw_only=True)
    folder: str = field(default="", kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.command or not all(isinstance(part, str) and part for part in self.command):
            raise UsageError("command must be the parts of a command, as ['python', '-m', 'tickets']")


@frozen
class Http(Server):
    """A server that runs elsewhere, reached by streamable HTTP at `url`. `headers` go with every request."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(factory=dict, converter=_pairs, repr=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise UsageError("url must be one of an MCP endpoint, as https://docs.example.com/mcp")


def secrets_of(server: Server) -> Iterator[str]:
    """The values among what `server` is given that look like secrets, and their parts."""
    if isinstance(server, Stdio):
        yield from secrets_among(server.env)
    elif isinstance(server, Http):
        yield from secrets_among(server.headers, _SECRET_HEADERS)
        yield from parts_of_secret(urlsplit(server.url).password or "")
