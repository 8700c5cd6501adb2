"""`flightlog plugins`: what is installed, what each registers, and what is wrong with those that were left out."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any, Final

import click

from flightlog.cli.exits import FAILED, FINE
from flightlog.cli.json_form import plain
from flightlog.cli.new_plugin import new
from flightlog.cli.options import json_option
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.plugins import ALLOW_VARIABLE, load_plugins
from flightlog.runtime.registry import Offer, PluginProblem, Registry
from flightlog_hookspecs.markers import CONTRACT_VERSION

_ERROR_MAX_CHARS: Final = 1000


check_option = click.option("--check", is_flag=True, help="End with exit code 1 when a plugin was left out.")


@click.group(invoke_without_command=True, short_help="List the plugins, and why some were left out.")
@check_option
@json_option
@click.pass_context
def plugins(context: click.Context, *, check: bool, as_json: bool) -> int | None:
    """List the installed plugins, what they register, and why some were left out."""
    return _list(check=check, as_json=as_json) if context.invoked_subcommand is None else None


@plugins.command("list")
@check_option
@json_option
def list_command(*, check: bool, as_json: bool) -> int:
    """The same."""
    return _list(check=check, as_json=as_json)


plugins.add_command(new)


def _list(*, check: bool, as_json: bool) -> int:
    with redirect_stdout(sys.stderr):  # what a plugin prints as it is imported is no part of the answer
        registry = load_plugins(discover=True, plugins=())
    output = Output(as_json=as_json)
    if as_json:
        output.json(_form(registry))
    else:
        _show(registry, output)
    return FAILED if check and registry.problems else FINE


def _form(registry: Registry) -> dict[str, Any]:
    return {
        "contract": CONTRACT_VERSION,
        "plugins": [
            {
                "name": offer.plugin.name,
                "version": offer.plugin.version.version,
                "tools": [
                    {"name": name, "mode": tool.item.tool.mode, "effect": tool.item.tool.effect}
                    for name, tool in offer.tools.items()
                ],
                "adapters": list(offer.adapters),
                "sections": [
                    {"name": name, "kind": section.item.kind, "rank": section.item.rank}
                    for name, section in offer.sections.items()
                ],
                "hooks": [{"point": hook.item.point, "name": hook.item.name} for hook in offer.hooks],
                "subagents": list(offer.subagents),
                "parameters": list(offer.parameters),
                "prices": list(offer.prices),
                "goal_checks": list(offer.goal_checks),
                "compactors": list(offer.compactors),
                "redactions": [redaction.item.name for redaction in offer.redactions],
                "services": list(offer.services),
            }
            for offer in registry.offers
        ],
        "problems": [plain(problem) for problem in registry.problems],
    }


def _show(registry: Registry, output: Output) -> None:
    for offer in registry.offers:
        output.line((one_line(offer.plugin.name), "bold"), f" {one_line(offer.plugin.version.version)}".rstrip())
        for what, names in _contents(offer):
            output.line((f"  {what:<11} ", "dim"), one_line(", ".join(names), _ERROR_MAX_CHARS))
    if not registry.offers:
        output.line(("no plugins", "dim"))
    if registry.problems:
        output.line("")
        output.line((f"left out: {counted(len(registry.problems), 'plugin')}", "bold red"))
    for problem in registry.problems:
        version = f" {one_line(problem.version)}" if problem.version else ""
        output.line((one_line(problem.name), "bold"), version, ": ", one_line(problem.error, _ERROR_MAX_CHARS))
        if problem.where:
            output.line(("  at          ", "dim"), one_line(problem.where, _ERROR_MAX_CHARS))
        output.line(("  to do       ", "dim"), _advice(problem))


def _contents(offer: Offer) -> list[tuple[str, list[str]]]:
    """What it registers, by kind; kinds of which there are none are left out."""
    tools = [f"{name} ({tool.item.tool.mode}, {tool.item.tool.effect})" for name, tool in offer.tools.items()]
    sections = [f"{name} ({section.item.kind})" for name, section in offer.sections.items()]
    hooks = [f"{hook.item.point}: {hook.item.name}" for hook in offer.hooks]
    kinds = [
        ("tools", tools),
        ("adapters", [f"{name}:" for name in offer.adapters]),
        ("sections", sections),
        ("hooks", hooks),
        ("subagents", list(offer.subagents)),
        ("parameters", list(offer.parameters)),
        ("prices", list(offer.prices)),
        ("goal checks", list(offer.goal_checks)),
        ("compactors", list(offer.compactors)),
        ("redactions", [redaction.item.name for redaction in offer.redactions]),
        ("services", list(offer.services)),
    ]
    return [(what, names) for what, names in kinds if names]


def _advice(problem: PluginProblem) -> str:
    if not problem.distribution:
        return f"correct or unset {ALLOW_VARIABLE}"
    return f"pip install -U {one_line(problem.distribution)}, or pip uninstall {one_line(problem.distribution)}"
