"""The rules of a tool."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import trio
import trio.testing
from attrs import frozen

from flightlog.api import open_kernel
from flightlog.core import canonical
from flightlog.core.limits import Limits
from flightlog.core.saying import described
from flightlog.core.tool_schema import BadArguments, PreparedTool, prepare
from flightlog.runtime.error_groups import unwrapped
from flightlog.runtime.tool_body import run_body
from flightlog.testing import Bundle, FakeModel, calls
from flightlog.testing.conformance.check import Broken, Check, checks_of
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs import Tool, ToolContext, ToolResult
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.tools import REPEATABLE

SCHEMA: Final = "every provider takes its schema"
DESCRIBED: Final = "the model is told what each argument is"
WELL: Final = "a call that fits goes well"
BOUNDED: Final = "its output can be shown whole"
REFUSED: Final = "arguments that do not fit are refused, in words for the model, and change nothing"
READ: Final = "a read changes nothing"
IDEMPOTENT: Final = "an idempotent call made again under its invocation id changes nothing more"
CUT_OFF: Final = "a call that is cut off comes to rest"
BY_NAME: Final = "a body for a process of its own is what its name leads to"

_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_THE_TOP: Final = ("oneOf", "anyOf", "allOf", "not", "enum")
_FAR_S: Final = 3600.0
_OPENING_S: Final = 10.0


@frozen(kw_only=True)
class ToolCase:
    """A tool, calls of it, and what the world looks like to it."""

    tool: Tool
    """The tool."""
    arguments: Sequence[Mapping[str, object]]
    """Calls that must go well. They are made several times, in order."""
    refused: Sequence[Mapping[str, object]] = ()
    """Calls that must be refused: by the schema, or by a `ToolError` before anything has happened."""
    slow: Mapping[str, object] | None = None
    """A call that takes longer than `patience_s` when it is let be; None: there is none."""
    world: Callable[[], object] | None = None
    """What the tool changes, as a value to compare. None: whether "read" and "idempotent" are true is not looked at."""
    workspace: str = ""
    """The folder that it works in, "" for none."""
    output_max_chars: int = Limits().tool_output_max_chars
    """The longest output that the model is to be given."""
    patience_s: float = 10.0
    """How long anything may take before it counts as hanging. Only tools that hang wait for it."""

    def __attrs_post_init__(self) -> None:
        if not self.arguments:
            raise ValueError(f"tool {self.tool.name!r}: give the arguments of a call that goes well ({{}} for none)")


def tool_checks(case: ToolCase) -> Iterator[Check]:
    """Every check of `case`."""
    said = {
        "by-name": case.tool.isolation == "process",
        "effect": case.world is not None and case.tool.effect in REPEATABLE,
        "cut-off": case.slow is not None and case.tool.effect != "transactional",  # the kernel cuts its transaction off
    }
    return checks_of(case.tool.name, case, {rule: of for rule, of in RULES.items() if said.get(rule, True)})


async def _schema(case: ToolCase) -> None:
    prepared = _prepared(case)
    schema: Any = json.loads(prepared.spec.parameters)
    if combined := [word for word in _NOT_AT_THE_TOP if word in schema]:
        raise Broken(SCHEMA, f"it has {combined[0]!r} at the top, which some refuse")
    for name, about in schema.get("properties", {}).items():
        if not _PROPERTY.fullmatch(name):
            raise Broken(SCHEMA, f"argument {name!r} is not 1 to 64 ASCII letters, digits, '_', '.' or '-'")
        if not isinstance(about, dict) or not about.get("description"):
            raise Broken(DESCRIBED, f"argument {name!r} has no description: give it one in the docstring")


async def _output(case: ToolCase) -> None:
    for arguments, result in zip(case.arguments, await _results(case, case.arguments), strict=True):
        if result.outcome != "ok":
            raise Broken(WELL, f"{arguments} ended as {result.outcome!r}: {result.text:.300}")
        if result.spill is not None or len(result.text) > case.output_max_chars:
            size = f"{result.spill.bytes} bytes" if result.spill else f"{len(result.text)} characters"
            raise Broken(BOUNDED, f"{arguments} brings {size}, and {case.output_max_chars} characters are shown")


async def _refused(case: ToolCase) -> None:
    _prepared(case)
    wanted = [*_misfits(case), *case.refused]
    before = case.world() if case.world else None
    for arguments, result in zip(wanted, await _results(case, wanted), strict=True):
        if result.outcome != "error":
            raise Broken(REFUSED, f"{arguments} ended as {result.outcome!r}: {result.text:.300}")
        if result.text.startswith(f"{case.tool.name} failed: "):
            raise Broken(REFUSED, f"{arguments}: {result.text:.300}; raise a ToolError that says what to change")
    if case.world and (after := case.world()) != before:
        raise Broken(REFUSED, f"the world was {before!r:.200} and became {after!r:.200}")


def _misfits(case: ToolCase) -> list[dict[str, object]]:
    """Of a call that fits: with an argument that there is not, and without each that the body cannot do without."""
    fits = dict(case.arguments[0])
    parameters = inspect.signature(case.tool.body).parameters
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name in fits and name != "context"
    ]
    return [
        *([] if any_name else [{**fits, "no_such_argument": 1}]),
        *({other: value for other, value in fits.items() if other != name} for name in needed),
    ]


async def _effect(case: ToolCase) -> None:
    """Each call twice under one invocation id, as after a crash."""
    assert case.world is not None
    prepared = _prepared(case)
    for number, arguments in enumerate(case.arguments, 1):
        before = case.world()
        await _within_patience(case, prepared, arguments, WELL, number)
        once = case.world()
        if case.tool.effect == "read" and once != before:
            raise Broken(READ, f"before {arguments} the world was {before!r:.200}, after it {once!r:.200}")
        await _within_patience(case, prepared, arguments, WELL, number)
        if (twice := case.world()) != once:
            rule = READ if case.tool.effect == "read" else IDEMPOTENT
            raise Broken(rule, f"{arguments} made the world {once!r:.200}, and then {twice!r:.200}")


async def _cut_off(case: ToolCase) -> None:
    """A cancel and a time limit are the same to a body: it is cancelled, and a thread is left to itself."""
    assert case.slow is not None
    prepared, done = _prepared(case), Broken(CUT_OFF, f"{case.slow} ended by itself: give a call that goes on")

    async def cut() -> None:
        threads, scope = trio.CapacityLimiter(1), trio.CancelScope()

        async def begin() -> None:
            with scope:
                await run_body(prepared, _context(case, 1), _fitting(prepared, case.slow or {}), threads)
                if not scope.cancel_called:
                    raise done

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            with trio.move_on_after(case.patience_s / 2):
                await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        with trio.move_on_after(case.patience_s):
            async with threads:  # which a thread that was left behind still holds
                return
        raise Broken(
            CUT_OFF, f"its thread still ran {case.patience_s:g} s later: make it async, or isolate its process"
        )

    if not await _in_own_loop(cut, 3 * case.patience_s):
        raise Broken(CUT_OFF, f"it had not let go {case.patience_s:g} s after it was cancelled")


async def _in_own_loop(of: Callable[[], Awaitable[object]], limit_s: float) -> bool:
    """Whether `of()` came back in time. It runs in a loop that is left behind when a body does not give it back."""
    with trio.move_on_after(limit_s) as limit:
        await trio.to_thread.run_sync(partial(trio.run, of), abandon_on_cancel=True)
    return not limit.cancelled_caught


async def _by_name(case: ToolCase) -> None:
    body = case.tool.body
    module, name = getattr(body, "__module__", ""), getattr(body, "__qualname__", "")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise Broken(BY_NAME, f"{module}.{name} cannot be imported: {described(error)}") from error
    if getattr(found, "body", found) is not body:
        raise Broken(BY_NAME, f"{module}.{name} is something else")
    prepared = _prepared(case)
    await _within_patience(case, prepared, case.arguments[0], BY_NAME, 1)


async def _within_patience(
    case: ToolCase, prepared: PreparedTool, arguments: Mapping[str, object], rule: str, number: int
) -> None:
    with trio.move_on_after(case.patience_s) as patience:
        try:
            await run_body(prepared, _context(case, number), _fitting(prepared, arguments), trio.CapacityLimiter(1))
        except Exception as error:
            raise Broken(rule, f"{arguments}: {described(unwrapped(error))}") from error
    if patience.cancelled_caught:
        raise Broken(rule, f"{arguments} took longer than {case.patience_s:g} s")


def _prepared(case: ToolCase) -> PreparedTool:
    try:
        return prepare(case.tool, "conformance", "")
    except UsageError as error:
        raise Broken(BY_NAME if "isolation='process'" in str(error) else SCHEMA, str(error)) from error


def _fitting(prepared: PreparedTool, arguments: Mapping[str, object]) -> dict[str, Any]:
    try:
        return prepared.arguments(canonical.dumps(dict(arguments)))
    except BadArguments as error:
        raise Broken(WELL, str(error)) from error


def _context(case: ToolCase, number: int) -> ToolContext:
    return ToolContext(
        invocation_id=f"conformance-{number}",
        session="conformance",
        turn=1,
        step=number,
        position=0,
        call_id="call_1",
        deadline=trio.current_time() + _FAR_S,
        workspace=case.workspace,
    )


async def _results(case: ToolCase, wanted: Sequence[Mapping[str, object]]) -> list[ToolResult]:
    """What the calls come to in a kernel, one after the other."""
    _prepared(case)
    model = FakeModel([calls((case.tool.name, dict(arguments))) for arguments in wanted])
    plugin = Bundle(tools=[case.tool], adapters=[model])
    limit_s = case.patience_s * len(wanted)
    results: list[ToolResult] = []

    async def run() -> None:
        with memory_folder() as folder:
            async with open_kernel(
                folder / "log.db", discover=False, plugins=[plugin], workspace=case.workspace or None
            ) as kernel:
                async with kernel.session("conformance", model="fake:model") as session:
                    await session.followup("Work.")
                    with trio.move_on_after(limit_s):
                        await session.run()
                messages = kernel.read("conformance").messages()
                results.extend(message for message in messages if isinstance(message, ToolResult))

    if not await _in_own_loop(run, 2 * limit_s + _OPENING_S) or len(results) < len(wanted):
        raise Broken(WELL, f"after {len(results)} of {list(wanted)} it took longer than {case.patience_s:g} s each")
    return results


RULES: Final[Mapping[str, Callable[[ToolCase], Awaitable[None]]]] = {
    "by-name": _by_name,
    "schema": _schema,
    "output": _output,
    "refused": _refused,
    "effect": _effect,
    "cut-off": _cut_off,
}
"""Without an importable body nothing else is worth a look."""
