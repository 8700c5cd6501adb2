"""OpenAI's models by the Responses API: `openai:MODEL`, with the extra `openai`.

    openai:MODEL?effort=high              how hard it thinks: none, minimal, low, medium, high, xhigh, max
        &summary=auto                     a summary of its reasoning: auto, concise or detailed
        &max_tokens=32000                 tokens of an answer, reasoning included
        &temperature=0.2&top_p=0.9        where the model takes them
        &base_url=https://...             another address; else OPENAI_BASE_URL, else OpenAI's
        &key_env=NAME                     the variable that holds the key; else OPENAI_API_KEY
        &window=400000                    tokens of a request and its answer
        &schema=off                       only the prompt says which JSON is wanted: for models that refuse to

Nothing is stored at the provider. Its encrypted reasoning goes back, in its place among the items, to the
model that it came from and to no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import Adapter, hookimpl
from flightlog_plugins.openai.decoding import Reading
from flightlog_plugins.openai.encoding import ADAPTER, body, encoded, model_name
from flightlog_plugins.wire.adapter import WireAdapter
from flightlog_plugins.wire.endpoint import Service

SERVICE: Final = Service(
    adapter=ADAPTER,
    sdk="openai",
    client="AsyncOpenAI",
    path="/responses",
    key_env="OPENAI_API_KEY",
    base_url_env="OPENAI_BASE_URL",
)


def adapter() -> WireAdapter:
    """A new adapter, with connections of its own."""
    return WireAdapter(SERVICE, encoded, model_name, body, lambda tag, _request, _model: Reading(tag).read)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer OpenAI's models."""
    register(adapter())
