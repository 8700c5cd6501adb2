"""`--model` and `--base-url`: which model, and where."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

from flightlog_hookspecs.errors import UsageError


def addressed(model: str | None, base_url: str | None) -> str | None:
    """`model` at `base_url`, which is an option of its name. Whether its adapter has it shows when it is asked."""
    if base_url is None:
        return model
    if model is None:
        raise UsageError("--base-url goes with --model; a session that goes on keeps the address of its own model")
    _, marked, query = model.partition("?")
    if any(option == "base_url" for option, _ in parse_qsl(query, keep_blank_values=True)):
        raise UsageError(f"--base-url: the model {model!r} names an address already; leave out one of the two")
    return f"{model}{'&' if marked else '?'}base_url={quote(base_url, safe=':/[]@')}"
