"""Claude models by Anthropic's Messages API: `anthropic:MODEL`, with the extra `anthropic`.

    anthropic:MODEL?max_tokens=32000      tokens of an answer, thinking included
        &thinking=adaptive                or disabled, between_tools, or a budget in tokens
        &display=summarized               or omitted: how thinking is shown
        &effort=high                      low, medium, high, xhigh or max
        &cache=5m                         how long the provider keeps what was sent: 5m, 1h or off
        &base_url=https://...             another address; else ANTHROPIC_BASE_URL, else Anthropic's
        &key_env=NAME                     the variable that holds the key; else ANTHROPIC_API_KEY
        &window=1000000                   tokens of a request and its answer, where it is not 200,000
        &schema=off                       only the prompt says which JSON is wanted: for models that refuse to

Thinking goes back as it came, as long as the head stays what it was: the provider binds it to all that
stood before it. Behind another head, with another model, for another account and behind a context that was made
shorter, it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import Adapter, hookimpl
from flightlog_plugins.anthropic.decoding import Reading
from flightlog_plugins.anthropic.encoding import ADAPTER, body, encoded, model_name
from flightlog_plugins.wire.adapter import WireAdapter
from flightlog_plugins.wire.endpoint import Service

SERVICE: Final = Service(
    adapter=ADAPTER,
    sdk="anthropic",
    client="AsyncAnthropic",
    path="/v1/messages",
    key_env="ANTHROPIC_API_KEY",
    base_url_env="ANTHROPIC_BASE_URL",
)

WINDOW: Final = 200_000
"""What every model can take; many take more."""


def adapter() -> WireAdapter:
    """A new adapter, with connections of its own."""
    return WireAdapter(
        SERVICE,
        encoded,
        model_name,
        body,
        lambda tag, _request, _model: Reading(tag).read,
        window=WINDOW,
        bound_thinking=True,
    )


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer Anthropic's models."""
    register(adapter())
