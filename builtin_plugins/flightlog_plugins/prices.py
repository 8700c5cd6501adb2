"""What the tokens of models cost, as the host says: there is no list of prices in the box, because they change.

    prices = Prices({"anthropic:claude-*": {"currency": "USD", "input": "3", "output": "15", "cached": "0.30"}})
    flightlog.open_kernel(path, plugins=[prices])       # or Prices.from_file("prices.toml")

Prices are of a million tokens, as strings. The first model that fits counts; see `Price`. One price holds whatever
the time of day, the length of a request or its service tier; where it differs by an option, name the option:
"anthropic:m?cache=1h".
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Self

from attrs import field, fields, frozen

from flightlog_hookspecs import Price, hookimpl
from flightlog_hookspecs.errors import UsageError

_KEYS = frozenset(each.name for each in fields(Price)) - {"model"}
_REQUIRED = frozenset({"currency", "input", "output"})


@frozen
class Prices:
    """A plugin with the prices in `table`: by model, the other fields of a `Price`.

    Raises `UsageError` for a table of another form; amounts are checked when it is registered.
    """

    table: Mapping[str, Mapping[str, str]] = field(converter=dict)

    def __attrs_post_init__(self) -> None:
        for model, stated in self.table.items():
            if not isinstance(stated, Mapping) or not _REQUIRED <= set(stated) <= _KEYS:
                raise UsageError(
                    f"the price of {model!r} must say {', '.join(sorted(_REQUIRED))}, and may say "
                    f"{', '.join(sorted(_KEYS - _REQUIRED))}, not {stated!r:.200}"
                )

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """The prices in a TOML file, one table a model.

        Raises `UsageError` when it cannot be read as such.
        """
        name = fspath(path)
        try:
            with open(name, "rb") as file:
                return cls(tomllib.load(file))
        except (OSError, ValueError, UsageError) as error:
            raise UsageError(f"prices in {name}: {error}") from error

    @hookimpl
    def register_prices(self, register: Callable[[Price], None]) -> None:
        """Register them in their order."""
        for model, stated in self.table.items():
            register(Price(model=model, **stated))
