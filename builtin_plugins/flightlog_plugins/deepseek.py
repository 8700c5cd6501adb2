"""DeepSeek's models: `deepseek:MODEL`, with the extra `openai`.

    deepseek:MODEL?thinking=disabled      enabled unless it says so
        &effort=high                      low, high or max
        &max_tokens=8192&temperature=...  as in openai-chat
        &base_url=https://...             another address; else DEEPSEEK_BASE_URL, else DeepSeek's
        &key_env=NAME                     the variable that holds the key; else DEEPSEEK_API_KEY
        &window=400000                    tokens of a request and its answer, where it is not 128,000
        &schema=off                       only the prompt says which JSON is wanted: for models that refuse to

Reasoning goes back with every later request: the provider refuses an answer with calls that has lost it.
Images and documents are not shown to its models, which are told so; the words of text files are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import Adapter, hookimpl
from flightlog_plugins.openai_chat.adapter import chat_adapter
from flightlog_plugins.openai_chat.encoding import Dialect
from flightlog_plugins.wire.endpoint import Service

SERVICE: Final = Service(
    adapter="deepseek",
    sdk="openai",
    client="AsyncOpenAI",
    path="/chat/completions",
    key_env="DEEPSEEK_API_KEY",
    base_url_env="DEEPSEEK_BASE_URL",
    base_url="https://api.deepseek.com",
)
DIALECT: Final = Dialect(
    adapter="deepseek", efforts=("low", "high", "max"), thinks=True, sees=False, takes_schema=False
)

WINDOW: Final = 128_000
"""What every model can take."""


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer DeepSeek's models."""
    register(chat_adapter(SERVICE, DIALECT, WINDOW))
