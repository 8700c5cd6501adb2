"""The adapter of every server that speaks Chat Completions, in its dialect."""

from __future__ import annotations

from flightlog_hookspecs import Request
from flightlog_plugins.openai_chat.decoding import Reading
from flightlog_plugins.openai_chat.encoding import Dialect
from flightlog_plugins.wire.adapter import WireAdapter
from flightlog_plugins.wire.endpoint import Read, Service
from flightlog_plugins.wire.model_name import ModelName


def chat_adapter(service: Service, dialect: Dialect, window: int | None = None) -> WireAdapter:
    """A new adapter for `service`, with connections of its own."""

    def reading(tag: str, request: Request, model: ModelName) -> Read:
        return Reading(tag, request.messages, int(model.options.get("max_tokens", 0))).read

    return WireAdapter(service, dialect.encoded, dialect.model_name, dialect.body, reading, window=window)
