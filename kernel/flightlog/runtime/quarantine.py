"""Installed plugins: found by their entry points, loaded one by one, those that are broken left out and listed.

Whatever one of them does, it costs that plugin only. What ends the process (a crash in C, `os._exit`) is
beyond that.
"""

from __future__ import annotations

import inspect
import locale
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from types import FrameType
from typing import Final

from attrs import define, field

from flightlog.core.saying import described
from flightlog.runtime.registry import Offer, PluginProblem, Registry
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import PluginVersion
from flightlog_hookspecs.markers import PROJECT

LOAD_LIMIT_S: Final = 10.0
"""A plugin that takes longer to import and register is left out."""

_CONTRACT: Final = "flightlog_hookspecs"
_ENTRY_POINTS: Final = "entry_points.txt"


def discover(
    registry: Registry,
    names: Collection[str] | None,
    given: Collection[str],
    offered: Callable[[object, PluginVersion], Offer],
) -> None:
    """Register the installed plugins, or those of `names`, but not what entry points call one of `given`.

    Each is what `offered` makes of it; one that fails is added to `registry.problems`.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(_entries(registry.problems), key=lambda entry: entry.name):
        if names is not None and entry.name not in names:
            continue
        other = found.setdefault(entry.name, entry)
        if entry.value in given:
            continue
        if other is not entry:
            taken = UsageError(f"there is a plugin {entry.name!r} already, {_distribution(other)} brings it")
            registry.problems.append(_problem(entry, taken, _metadata_file(entry.dist, entry)))
            continue
        loading = _Loading(entry, offered)
        try:
            registry.enter(loading.within(LOAD_LIMIT_S))
        except Exception as error:
            registry.problems.append(_problem(entry, error, loading.where(error)))
    for name in sorted(set(names or ()) - found.keys()):
        registry.problems.append(PluginProblem(name=name, error="is to be loaded, but no such plugin is installed"))


def _entries(problems: list[PluginProblem]) -> Iterator[EntryPoint]:
    try:
        yield from entry_points(group=PROJECT)
    except Exception:  # one unreadable file hides all of them: look at each distribution on its own
        seen: dict[str, Distribution] = {}
        for distribution in distributions():  # a folder that is on the path twice yields its own twice
            name, where = _called(distribution), _metadata_file(distribution)
            if seen.setdefault(name, distribution) is not distribution:
                continue
            try:
                yield from distribution.entry_points.select(group=PROJECT)
            except Exception as error:
                problems.append(PluginProblem(name=name, error=described(error), where=where, distribution=name))


@define
class _Loading:
    """One plugin on its way in, in a thread of its own that is left behind when it takes too long."""

    _entry: EntryPoint
    _offered: Callable[[object, PluginVersion], Offer]
    _plugin: object = field(default=None, init=False)
    _offer: Offer | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)
    _hanging: FrameType | None = field(default=None, init=False)

    def within(self, limit_s: float) -> Offer:
        """What it offers. Raises an `Exception` for whatever is wrong with it."""
        before = _surroundings()
        thread = threading.Thread(target=self._run, name="flightlog-plugin", daemon=True)
        thread.start()
        thread.join(limit_s)
        if changed := _restored(before):
            raise UsageError(f"changed {changed} of the whole process while it was loaded; that was undone")
        if self._error is not None:
            # Also of what would end the process: it is the plugin's, for nothing else runs in that thread.
            raise self._error if isinstance(self._error, Exception) else _Foreign(self._error)
        if self._offer is None:
            self._hanging = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  the documented way to look
            raise TimeoutError(f"did not finish loading within {limit_s:g} s")
        return self._offer

    def _run(self) -> None:
        try:
            self._plugin = loaded = self._entry.load()
            plugin = loaded() if inspect.isclass(loaded) else loaded
            dist = self._entry.dist
            self._offer = self._offered(
                plugin, PluginVersion(name=self._entry.name, version=dist.version if dist else "")
            )
        except BaseException as error:
            self._error = error

    def where(self, error: BaseException) -> str:
        """The line of the plugin that `error` leads to, else what is known: its file, its entry point."""
        try:
            return self._line_of(error) or self._line_of_hook(error) or self._file()
        except Exception:  # an object may answer to every look at it with an error
            return _metadata_file(self._entry.dist, self._entry)

    def _line_of(self, error: BaseException) -> str:
        error = error.error if isinstance(error, _Foreign) else error
        if isinstance(error, SyntaxError) and error.filename:
            return f"{error.filename}:{error.lineno}"
        line, package = "", self._entry.module.partition(".")[0]
        for frame, number in _frames(error, self._hanging):
            if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                line = f"{frame.f_code.co_filename}:{number}"
        return line

    def _line_of_hook(self, error: BaseException) -> str:
        """Of a hook that pluggy refused: it says its name, and no line of the plugin has run."""
        for name, function in inspect.getmembers(self._plugin, callable):
            code = getattr(inspect.unwrap(function), "__code__", None)
            if code and hasattr(function, f"{PROJECT}_impl") and repr(name) in str(error):
                return f"{code.co_filename}:{code.co_firstlineno}"
        return ""

    def _file(self) -> str:
        module = sys.modules.get(self._entry.module)
        return getattr(module, "__file__", None) or _metadata_file(self._entry.dist, self._entry)


class _Foreign(Exception):
    """What a plugin raised that is no `Exception`: it says what that said."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(described(error))


def _frames(error: BaseException, hanging: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames that `error` came through, or in which a thread hangs, the innermost last, and their lines."""
    traceback = error.__traceback__
    while traceback:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    stack: list[FrameType] = []
    while hanging:
        stack.append(hanging)
        hanging = hanging.f_back
    yield from ((frame, frame.f_lineno) for frame in reversed(stack))


def _surroundings() -> tuple[str, str]:
    """What belongs to the whole process and not to a plugin: working folder, locale. "" for a folder that is gone."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    return folder, locale.setlocale(locale.LC_ALL)


def _restored(before: tuple[str, str]) -> str:
    """Put back what is different; returns what it was."""
    changed = []
    for what, was, now in zip(("the working folder", "the locale"), before, _surroundings(), strict=True):
        if was != now and was:
            changed.append(what)
            if what == "the locale":
                locale.setlocale(locale.LC_ALL, was)
            else:
                os.chdir(was)
    return " and ".join(changed)


def _problem(entry: EntryPoint, error: Exception, where: str) -> PluginProblem:
    said = str(error) if isinstance(error, _Foreign) else described(error)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == _CONTRACT:
        said += ". It seems to need a newer flightlog, or an older one"
    try:
        version = entry.dist.version if entry.dist else ""
    except Exception:
        version = ""
    return PluginProblem(name=entry.name, error=said, where=where, version=version, distribution=_distribution(entry))


def _distribution(entry: EntryPoint) -> str:
    return _called(entry.dist) if entry.dist else ""


def _called(distribution: Distribution) -> str:
    """Its name; what its folder is called when it does not say."""
    try:
        return str(distribution.metadata["Name"] or _metadata_file(distribution))
    except Exception:
        return _metadata_file(distribution)


def _metadata_file(distribution: Distribution | None, entry: EntryPoint | None = None) -> str:
    """Where its entry points are listed, with the line of `entry`; "" when it is no folder."""
    folder = getattr(distribution, "_path", None)
    if distribution is None or folder is None:
        return ""
    path, lines = os.path.join(folder, _ENTRY_POINTS), (distribution.read_text(_ENTRY_POINTS) or "").splitlines()
    for number, line in enumerate(lines if entry else (), 1):
        if entry and line.partition("=")[0].strip() == entry.name:
            return f"{path}:{number}"
    return path
