"""What a tool of a server is called here: `server__tool`, legal for every provider, and the same for ever.

A server's name holds no "__" and does not end with "_", so no two servers can offer one name. A tool whose name has
other characters than letters, digits, "_" and "-", or is too long, is cut to what is legal, and a hash of its own name
tells it apart: its name depends on nothing but its own and its server's.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from flightlog_hookspecs.errors import UsageError

NAME_MAX_CHARS: Final = 64
SERVER_NAME_MAX_CHARS: Final = 32

_SERVER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*(_[A-Za-z0-9-]+)*")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS: Final = 8


def check_server(name: object) -> None:
    """Raise `UsageError` unless `name` can stand before the names of a server's tools."""
    if not isinstance(name, str) or len(name) > SERVER_NAME_MAX_CHARS or not _SERVER.fullmatch(name):
        raise UsageError(
            f"the name of an MCP server is a letter and up to {SERVER_NAME_MAX_CHARS - 1} more letters, digits, '-' "
            f"or single '_' inside, not {name!r}"
        )


def tool_name(server: str, tool: str) -> str:
    """What the tool `tool` of `server` is called."""
    name = f"{server}__{tool}"
    if tool and len(name) <= NAME_MAX_CHARS and not _ILLEGAL.search(name):
        return name
    digest = sha256(tool.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{_ILLEGAL.sub('_', name)[: NAME_MAX_CHARS - _HASH_CHARS - 1]}_{digest}"
