"""The part of a model's name behind the colon: `name?option=value&...`, with rules for the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from attrs import frozen

from flightlog_hookspecs.errors import ProviderError

Rule = tuple[Callable[[str], bool], str]
"""Whether a value fits, and what a fitting one is."""


@frozen(kw_only=True)
class ModelName:
    """A parsed name. `options` hold what fits the rules, `faults` say what does not."""

    name: str
    options: Mapping[str, str]
    faults: tuple[str, ...]

    def refuse_faults(self) -> None:
        """Raise `ProviderError(bad_request)` unless everything fits."""
        if self.faults:
            raise ProviderError("bad_request", f"model {self.name!r}: {'; '.join(self.faults)}")


def parsed(model: str, rules: Mapping[str, Rule]) -> ModelName:
    """`model` in its parts. Never fails: a request is encoded before anybody can be told of faults."""
    name, _, query = model.partition("?")
    options, faults = {}, []
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in rules:
            faults.append(f"there is no option {option!r} (there are {', '.join(sorted(rules))})")
        elif not rules[option][0](value):
            faults.append(f"{option} must be {rules[option][1]}, not {value!r}")
        else:
            options[option] = value
    if not name:
        faults.append("a name stands before the options")
    return ModelName(name=name, options=options, faults=tuple(faults))


def one_of(*values: str) -> Rule:
    """One of some words."""
    return values.__contains__, " or ".join(values)


def _is_url(value: str) -> bool:
    try:
        url = urlsplit(value)
        reachable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return reachable and "@" not in url.netloc and not url.query


def _is_number(value: str) -> bool:
    return re.fullmatch(r"\d{1,4}(\.\d{1,6})?", value, re.ASCII) is not None


def is_count(value: str) -> bool:
    """Whether `value` is a whole number above zero."""
    return re.fullmatch(r"[1-9]\d{0,8}", value, re.ASCII) is not None


COUNT: Rule = (is_count, "a whole number above zero")
NUMBER: Rule = (_is_number, "a number")
URL: Rule = (_is_url, "an http or https address without a password in it")
VARIABLE: Rule = (
    lambda value: re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None,
    "the name of an environment variable",
)
COMMON: Mapping[str, Rule] = {
    "base_url": URL,
    "key_env": VARIABLE,
    "schema": one_of("on", "off"),
    "window": COUNT,
}
"""The options of every adapter: where a model is, which variable holds the key, whether it is told the schema that its
answers are to fit, and how many tokens it takes."""
