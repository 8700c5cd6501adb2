"""Secrets of the environment stay out of the log: what tools, hooks, sections and providers say is redacted.

    flightlog.open_kernel(path, plugins=[Secrets()])
    Secrets(env=(*Secrets.ENV, "DATABASE_URL"), values=[license_key], patterns=[r"ghp_[A-Za-z0-9]{36}"])

The value of a variable whose name fits `env`, and is long enough to be a secret, is replaced by `[redacted NAME]`;
`values` and what `patterns` match by `[redacted]`. A value is found as it is and as JSON, Python and URLs write it, and
alone in base64. It is not found in pieces, or in another encoding. What people send is the host's:
`session.followup(secrets.redact(text))`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Final
from urllib.parse import quote, quote_plus

from attrs import define, field

from flightlog_hookspecs import Redaction, hookimpl
from flightlog_hookspecs.errors import UsageError

ENV_VALUE_MIN_CHARS: Final = 8
"""A shorter value of a variable is no secret, and would blot out words."""
VALUE_MIN_CHARS: Final = 4


def _strings(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@define(eq=False)
class Secrets:
    """A plugin with one redaction. `env` are patterns for names of variables, as in a shell, in any case of letters.

    The environment is read again each time, and a value that was a secret once stays one. Raises `UsageError`
    for a value that is too short, and for a pattern that is none or matches nothing at all everywhere.
    """

    ENV: ClassVar[tuple[str, ...]] = ("*_KEY", "*_TOKEN", "*SECRET*", "*PASSWORD*")

    env: tuple[str, ...] = field(default=ENV, converter=_strings)
    values: tuple[str, ...] = field(default=(), converter=_strings, repr=False)
    patterns: tuple[str, ...] = field(default=(), converter=_strings)
    _patterns: list[re.Pattern[str]] = field(init=False, repr=False, factory=list)
    _names: dict[str, bool] = field(init=False, repr=False, factory=dict)
    _known: dict[tuple[str, str], None] = field(init=False, repr=False, factory=dict)
    _forms: list[tuple[str, str]] = field(init=False, repr=False, factory=list)
    _learning: threading.RLock = field(init=False, repr=False, factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        for name in self.env:
            if not isinstance(name, str):
                raise UsageError(f"env holds {type(name).__name__}; it must hold names of variables, or patterns")
        for value in self.values:
            if not isinstance(value, str) or len(value) < VALUE_MIN_CHARS:
                raise UsageError(f"values must be strings of at least {VALUE_MIN_CHARS} characters; one is not")
        self._patterns = [_compiled(pattern) for pattern in self.patterns]
        self._learn([*self._of_environment(), *(("", value) for value in self.values)])

    def redact(self, text: str) -> str:
        """`text` without the secrets."""
        self._learn(self._of_environment())
        for form, shown in self._forms:
            text = text.replace(form, shown)
        for pattern in self._patterns:
            text = pattern.sub("[redacted]", text)
        return text

    @hookimpl
    def register_redactions(self, register: Callable[[Redaction], None]) -> None:
        """Register the redaction."""
        register(Redaction(name="secrets", body=self.redact))

    def _of_environment(self) -> Iterator[tuple[str, str]]:
        for name, value in os.environ.items():
            if len(value) >= ENV_VALUE_MIN_CHARS and self._is_meant(name):
                yield name, value

    def _is_meant(self, name: str) -> bool:
        meant = self._names.get(name)
        if meant is None:  # it is asked for each text, so each name is matched once
            meant = any(fnmatchcase(name.upper(), pattern.upper()) for pattern in self.env)
            self._names[name] = meant
        return meant

    def _learn(self, secrets: Iterable[tuple[str, str]]) -> None:
        with self._learning:
            self._add(secrets)

    def _add(self, secrets: Iterable[tuple[str, str]]) -> None:
        new = [secret for secret in secrets if secret not in self._known]
        if not new:
            return
        shown: dict[str, str] = dict(self._forms)
        for name, value in new:
            for form in _forms_of(value):
                shown.setdefault(form, f"[redacted {name}]" if name else "[redacted]")
        # The longest first: one secret may be a part of another.
        self._forms = sorted(shown.items(), key=lambda item: (-len(item[0]), item[0]))
        self._known |= dict.fromkeys(new)  # last: what is known is among the forms


def secrets_among(given: Mapping[str, str], names: tuple[str, ...] = Secrets.ENV) -> Iterator[str]:
    """The values of what is `given` by the host under names that fit `names` (in capitals), and their parts."""
    for name, value in given.items():
        if any(fnmatchcase(name.upper(), pattern) for pattern in names):
            yield from parts_of_secret(value)


def parts_of_secret(value: str) -> Iterator[str]:
    """What to redact of a secret: all of it, and what stands between its spaces, where that is long enough."""
    for part in dict.fromkeys((value, *value.split())):  # "Bearer" and what comes behind it
        if len(part) >= ENV_VALUE_MIN_CHARS:
            yield part


def register_values(register: Callable[[Redaction], None], name: str, values: Iterable[str]) -> None:
    """Register a redaction called `name` of `values`, or none when there are none."""
    if values := tuple(values):
        register(Redaction(name=name, body=redacting(values)))


def redacting(values: Iterable[str]) -> Callable[[str], str]:
    """What takes `values` out of a text."""
    return Secrets(env=(), values=values).redact


def _compiled(pattern: object) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise UsageError(f"patterns holds {type(pattern).__name__}; it must hold regular expressions as strings")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"the pattern {pattern!r} is no regular expression: {error}") from None
    if compiled.search(""):
        raise UsageError(f"the pattern {pattern!r} matches the empty text, and so everywhere")
    return compiled


def _forms_of(value: str) -> Iterator[str]:
    """A secret as it may stand in a text."""
    for form in (value, value.strip()):
        if len(form) >= VALUE_MIN_CHARS:
            raw = form.encode(errors="surrogateescape")
            yield form
            yield json.dumps(form)[1:-1]
            yield json.dumps(form, ensure_ascii=False)[1:-1]
            yield repr(form)[1:-1]
            yield quote(raw)
            yield quote(raw, safe="")
            yield quote_plus(raw)
            yield base64.b64encode(raw).decode().rstrip("=")
            yield base64.urlsafe_b64encode(raw).decode().rstrip("=")
