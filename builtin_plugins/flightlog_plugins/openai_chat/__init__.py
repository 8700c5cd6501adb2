"""Models behind Chat Completions, OpenAI's and all that speak like it: `openai-chat:MODEL`, with the extra `openai`.

    openai-chat:MODEL?base_url=https://...   any server; else OPENAI_BASE_URL, else OpenAI's
        &key_env=NAME                        the variable that holds the key; else OPENAI_API_KEY
        &window=400000                       tokens of a request and its answer
        &schema=off                          only the prompt says which JSON is wanted: for servers that refuse to
        &max_tokens=4096                     tokens of an answer
        &temperature=0.2&top_p=0.9           as the server understands them
        &effort=high                         how hard a reasoning model thinks
        &usage=off                           do not ask for token counts: for servers that refuse the question

A server with an address of its own may do without a key. Reasoning goes back to the address that it came
from, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import Adapter, hookimpl
from flightlog_plugins.openai_chat.adapter import chat_adapter
from flightlog_plugins.openai_chat.encoding import Dialect
from flightlog_plugins.wire.endpoint import Service

SERVICE: Final = Service(
    adapter="openai-chat",
    sdk="openai",
    client="AsyncOpenAI",
    path="/chat/completions",
    key_env="OPENAI_API_KEY",
    base_url_env="OPENAI_BASE_URL",
    key_optional=True,
)
DIALECT: Final = Dialect(
    adapter="openai-chat",
    efforts=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    max_tokens="max_completion_tokens",
)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer what speaks Chat Completions."""
    register(chat_adapter(SERVICE, DIALECT))
