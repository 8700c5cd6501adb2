"""A connection to a provider through its official client: one per kernel and address, made when first needed."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from itertools import chain
from typing import Any, Final

import trio
from attrs import define, field, frozen

from flightlog_hookspecs import Alive, BlockEvent, Finish
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire.failures import one_line
from flightlog_plugins.wire.model_name import ModelName
from flightlog_plugins.wire.reported import reported
from flightlog_plugins.wire.sse import Frame, SseReader

LINGER_S = 0.5
"""How long a complete answer waits for the end of its stream, without which its connection cannot be used again."""

REPORT_MAX_BYTES: Final = 64 * 1024
"""No report of a failure is longer."""

_ALIVE: Final = (Alive(),)
"""What a frame comes to that says nothing: thinking that is not shown has minutes of them."""

Read = Callable[[Frame | None], list[BlockEvent]]
"""What a frame of the stream comes to; None stands for its end."""


@frozen(kw_only=True)
class Service:
    """What is to be known of a provider before it is reached.

    `sdk` is both the package of the official client and the extra that brings it; `client` names its
    class. `key_env` names the variable with the key, `base_url_env` one with another address; "" for none.
    A model on an address of its own may do without a key if `key_optional`.
    """

    adapter: str
    sdk: str
    client: str
    path: str
    key_env: str
    base_url_env: str = ""
    base_url: str = ""
    key_optional: bool = False


@frozen
class _Client:
    """The official client, and the key that must not be shown."""

    sdk: Any
    of: Any
    key: str
    key_env: str


@define
class Endpoint:
    """The clients of one adapter. They are bound to the loop of the kernel that closes them."""

    service: Service
    _clients: dict[tuple[str, str, str], _Client] = field(factory=dict, init=False)

    @asynccontextmanager
    async def events(self, model: ModelName, body: bytes, read: Read) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Post `body` and yield what `read` makes of each frame, and of None once the stream has ended.

        Raises `ProviderError` for every failure. Leaving hangs up.
        """
        model.refuse_faults()
        # In a thread: the official packages take a second to import, and the loop is shared.
        sdk = await trio.to_thread.run_sync(_imported, self.service)
        client = self._client(model, sdk)
        with _explained(client, model):
            response = await client.of.post(
                self.service.path,
                cast_to=object,
                content=body,
                # The answer is read here and not by the client, which leaves streams open behind it.
                options={"headers": {"X-Stainless-Raw-Response": "stream", "Accept": "text/event-stream"}},
                stream=True,
                stream_cls=client.sdk.AsyncStream[object],
            )
        kind = response.headers.get("content-type", "")
        try:
            if "json" in kind:
                await _raise_reported(response.http_response, client, model)
            if "html" in kind or "json" in kind:
                raise ProviderError("protocol", f"the address answers with {kind}, not with a stream: is it right?")
            yield _read(response.http_response, client, model, read)
        finally:
            await response.http_response.aclose()

    async def aclose(self) -> None:
        """Close all connections. The next request makes new ones."""
        while self._clients:
            await self._clients.popitem()[1].of.close()

    def _client(self, model: ModelName, sdk: Any) -> _Client:
        service = self.service
        asked = model.options.get("base_url", "")
        base_url = asked or os.environ.get(service.base_url_env, "") or service.base_url
        key_env = model.options.get("key_env", service.key_env)
        key = os.environ.get(key_env, "").strip()
        if not key and not (service.key_optional and base_url):
            raise ProviderError("auth", f"no API key for {service.adapter}: set the environment variable {key_env}")
        if not key.isascii() or not key.isprintable():
            # The transport would refuse it with an error that shows it.
            raise ProviderError("auth", f"{key_env} holds characters that no API key has")
        wanted = (base_url, key_env, key)
        if wanted not in self._clients:
            options: dict[str, Any] = {"base_url": base_url} if base_url else {}
            made = getattr(sdk, service.client)(api_key=key or "none", max_retries=0, timeout=None, **options)
            self._clients[wanted] = _Client(sdk, made, key, key_env)
        return self._clients[wanted]


async def _read(response: Any, client: _Client, model: ModelName, read: Read) -> AsyncIterator[BlockEvent]:
    """The block events of a response. `Finish` comes when the stream has ended, or should have."""
    reader = SseReader()
    finish: Finish | None = None
    chunks = response.aiter_bytes()
    with _explained(client, model):
        try:
            async for chunk in chunks:
                for event in chain.from_iterable(read(frame) or _ALIVE for frame in reader.feed(chunk)):
                    if isinstance(event, Finish):
                        finish = event
                        break
                    yield event
                if finish:
                    await _drain(chunks, LINGER_S)
                    break
            for event in [finish] if finish else read(None):
                yield event
        finally:
            await _drain(chunks, 0)


async def _raise_reported(response: Any, client: _Client, model: ModelName) -> None:
    """Raise the failure that a response with a status of success holds; nothing if it holds none."""
    raw = b""
    with _explained(client, model):
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > REPORT_MAX_BYTES:
                return
    with suppress(ValueError, RecursionError):
        body = json.loads(raw)
        first = body[0] if isinstance(body, list) and body else body
        if isinstance(first, dict) and first.get("error"):
            raise _kept_secret(reported(first, headers=response.headers), client.key)


async def _drain(chunks: AsyncIterator[bytes], limit_s: float) -> None:
    """Read what is left of a response, which counts no more, for `limit_s` seconds at most.

    Also when it is left at once: the transport is a chain of generators, and only a cancel that comes from
    the innermost one ends them all. Closing the outermost leaves the others to the garbage collector.
    """
    with trio.CancelScope(deadline=trio.current_time() + limit_s) as scope:
        if not limit_s:
            scope.cancel()
        with suppress(Exception):
            async for _ in chunks:
                pass


def _imported(service: Service) -> Any:
    try:
        return import_module(service.sdk)
    except ImportError as error:
        raise ProviderError(
            "adapter",
            f"the package {service.sdk!r} cannot be imported ({one_line(str(error))}): "
            f"pip install 'flightlog[{service.sdk}]'",
        ) from None


@contextmanager
def _explained(client: _Client, model: ModelName) -> Iterator[None]:
    """Turn what the official client and its transport raise into `ProviderError`, without the key in it."""
    import httpx2

    sdk = client.sdk
    try:
        yield
    except ProviderError as error:
        # Providers quote what they were sent.
        if client.key and client.key in error.message:
            raise _kept_secret(error, client.key) from None
        raise
    except sdk.APIStatusError as error:
        raise _kept_secret(_refused(error, client, model), client.key) from None
    except (sdk.APITimeoutError, httpx2.TimeoutException) as error:
        raise ProviderError("timeout", _said(error)) from None
    except (sdk.APIConnectionError, httpx2.TransportError, httpx2.StreamError) as error:
        raise ProviderError("transport", _said(error.__cause__ or error)) from None
    except httpx2.DecodingError as error:
        raise ProviderError("protocol", _said(error)) from None


def _refused(error: Any, client: _Client, model: ModelName) -> ProviderError:
    """The failure in an answer with an error status."""
    status = error.status_code
    refusal = reported(error.body, otherwise=str(error.message), status=status, headers=error.response.headers)
    advice = ""
    if refusal.kind == "auth":
        advice = f"; check the environment variable {client.key_env}"
    elif status == 404:
        advice = f"; is {model.name!r} a model of this provider, and the address right?"
    return ProviderError(
        refusal.kind,
        refusal.message + advice,
        retryable=refusal.retryable,
        retry_after_s=refusal.retry_after_s,
    )


def _kept_secret(error: ProviderError, key: str) -> ProviderError:
    message = error.message.replace(key, "[key]") if key else error.message
    return ProviderError(error.kind, message, retryable=error.retryable, retry_after_s=error.retry_after_s)


def _said(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))
