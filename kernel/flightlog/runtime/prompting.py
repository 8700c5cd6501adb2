"""What the prompt sections say at this moment. One that fails costs nothing but its news."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from attrs import evolve

from flightlog.core.context import HOST_SECTION
from flightlog.runtime.plugin_call import Failed, call, contained
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registry import Registry
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import PluginFault
from flightlog_hookspecs.hooks import StepView
from flightlog_hookspecs.prompt import PromptSection, SectionKind


class Prompt:
    """The sections of one session as they were rendered last."""

    def __init__(self, system: str, registry: Registry, threads: trio.CapacityLimiter, redacting: Redacting) -> None:
        self._system = system
        self._redacting = redacting
        self._registry = registry
        self._threads = threads
        self._static: dict[str, str] | None = None

    async def rendered(
        self, given: Mapping[str, str], view: StepView, *, anew: bool
    ) -> tuple[dict[str, str], dict[str, str], Sequence[PluginFault]]:
        """The static texts, all others and what went wrong. The static ones are rendered again when `anew`.

        `view` is the step before the model is told any of it.

        The texts are by section, in order. A section that fails keeps the text that was `given` last.
        """
        faults: list[PluginFault] = []
        if anew or self._static is None:
            self._static, faults = await self.static(given, view)
        return self._static, await self._texts(("runtime", "last"), given, view, faults), faults

    def last(self) -> set[str]:
        """The names of the sections that stand behind all others."""
        return {name for name, section in self._registry.sections.items() if section.item.kind == "last"}

    async def static(self, given: Mapping[str, str], view: StepView) -> tuple[dict[str, str], list[PluginFault]]:
        """The static texts as they are now, the host's own first, and what went wrong."""
        faults: list[PluginFault] = []
        host = {HOST_SECTION: self._redacting.text(self._system)} if self._system else {}
        return host | await self._texts(("static",), given, view, faults), faults

    async def _texts(
        self, kinds: Sequence[SectionKind], given: Mapping[str, str], view: StepView, faults: list[PluginFault]
    ) -> dict[str, str]:
        sections = [section for section in self._registry.sections.values() if section.item.kind in kinds]
        sections.sort(key=lambda section: (kinds.index(section.item.kind), section.item.rank, section.item.name))
        texts: dict[str, str] = {}
        for registered in sections:
            section = registered.item
            if registered.plugin.taken_back:
                continue  # while those before it were rendered
            try:
                with registered.plugin.running(), contained():
                    text = _text(await call(section.render, view, limit_s=section.limit_s, threads=self._threads))
            except Failed as failed:
                text = given.get(section.name, "")
                said = self._redacting.text(str(failed))
                faults.append(PluginFault(plugin=registered.plugin.name, hook=f"render {section.name}", error=said))
            texts[section.name] = self._redacting.text(text)
        return texts


def _text(answer: object) -> str:
    if isinstance(answer, str):
        return answer
    raise Failed(f"returned {type(answer).__name__}, not a string")


def given_step(section: PromptSection) -> PromptSection:
    """`section` with a `render` that is called with the step, whether it wants it or not.

    Raises `UsageError` when it requires more.
    """
    render: Callable[..., Any] = section.render
    required = _required(render)
    if required > 1:
        raise UsageError(f"prompt section {section.name!r}: render can be given the step, and nothing more")
    if required:
        return section

    async def awaited(_: StepView) -> Any:
        return await render()

    return evolve(section, render=awaited if inspect.iscoroutinefunction(render) else lambda _: render())


def _required(render: Callable[..., object]) -> int:
    try:
        parameters = inspect.signature(render).parameters.values()
    except ValueError:  # a type of C, say
        return 0
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return sum(each.default is each.empty and each.kind not in variadic for each in parameters)
