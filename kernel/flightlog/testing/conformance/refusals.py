"""Rules of answers that are none: each error status has a kind, and the provider's wish to wait is heard."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from attrs import evolve

from flightlog.testing.conformance.bench import Bench, Outcome
from flightlog.testing.conformance.server import Answer, refusal
from flightlog_hookspecs import Head
from flightlog_hookspecs.errors import RETRYABLE, FailureKind

STATUS: Final = "every error status is a failure with the right kind"
RETRY: Final = "what passes is tried again, and what does not is not"
RETRY_AFTER: Final = "Retry-After is heard"
NO_STREAM: Final = "an answer that is no stream is a failure"
NOBODY: Final = "a provider that is not there is a failure that is tried again"

STATUSES: Final[Mapping[int, frozenset[FailureKind]]] = {
    400: frozenset({"bad_request"}),
    401: frozenset({"auth"}),
    403: frozenset({"auth"}),
    404: frozenset({"bad_request"}),
    408: frozenset({"timeout"}),
    413: frozenset({"context_overflow", "bad_request"}),
    418: frozenset({"bad_request"}),
    429: frozenset({"rate_limit"}),
    500: frozenset({"server"}),
    502: frozenset({"server"}),
    503: frozenset({"overloaded", "server"}),
    504: frozenset({"timeout", "server", "overloaded"}),
    529: frozenset({"overloaded", "server"}),
}
"""What each status may mean. Servers invent others: one below 500 is the request's fault, one above the server's."""

BODIES: Final[tuple[object, ...]] = ({}, {"error": "what?"}, {"error": {"message": "what?"}}, [], "what?", None)
"""Bodies that providers, and the proxies before them, send with an error."""

WAITS_S: Final[Mapping[str, float | None]] = {"7": 7.0, "0": 0.0, "soon": None, "": None}
"""Retry-After as it is sent, and the seconds that it means."""


async def refused(bench: Bench) -> None:
    """Every error status, with whatever body, is a failure of its kind; one that passes is tried again."""
    for status, kinds in {**STATUSES, **bench.case.statuses}.items():
        for body in BODIES:
            outcome = await bench.attempt(refusal(status, body))
            _expect(bench, outcome, STATUS, f"status {status} with the body {body!r}", kinds)
        empty = await bench.attempt(Answer(chunks=[], status=status, headers={"content-type": "text/plain"}))
        _expect(bench, empty, STATUS, f"status {status} without a body", kinds)
    for status in (429, 503):
        for sent, seconds in WAITS_S.items():
            outcome = await bench.attempt(refusal(status, {}, retry_after=sent))
            wish = outcome.failure.retry_after_s if outcome.failure else None
            if wish != seconds:
                raise bench.broken(RETRY_AFTER, f"status {status} with {sent!r} means {seconds} s, and became {wish}")


async def not_a_stream(bench: Bench) -> None:
    """A page in place of a stream, and nobody at the address, are failures."""
    page = Answer(chunks=[b"<html>\n\n<body>Log in first</body></html>"], headers={"content-type": "text/html"})
    outcome = await bench.attempt(page)
    if outcome.failure is None:
        raise bench.broken(NO_STREAM, f"a page became {outcome.message}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        there, bench.adapter = bench.adapter, bench.case.adapter(url)
        try:
            outcome = await bench.attempt(page, request=bench.request(head=_at(bench, url)))
        finally:
            if close := getattr(bench.adapter, "aclose", None):
                await close()
            bench.adapter = there
    _expect(bench, outcome, NOBODY, "no connection", frozenset({"transport", "timeout"}))


def _at(bench: Bench, url: str) -> Head:
    return evolve(bench.head, model=bench.case.model.replace("{url}", url))


def _expect(bench: Bench, outcome: Outcome, rule: str, what: str, kinds: frozenset[FailureKind]) -> None:
    failure = outcome.failure
    if failure is None:
        raise bench.broken(rule, f"{what} became an answer: {outcome.message}")
    if failure.kind not in kinds:
        raise bench.broken(rule, f"{what} became {failure.kind!r}, not {' or '.join(sorted(kinds))}")
    if failure.retryable != (failure.kind in RETRYABLE):
        raise bench.broken(RETRY, f"{what} is {failure.kind!r} with retryable={failure.retryable}")
