"""The rules of a hook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Final

import trio
from attrs import frozen

from flightlog.runtime.hooks import objection
from flightlog.runtime.plugin_call import Failed, call
from flightlog.testing.conformance.check import Broken, Check, checks_of
from flightlog_hookspecs import (
    Ask,
    Deny,
    FailedRequest,
    FinishedCall,
    Hook,
    Point,
    ProposedCall,
    RequestView,
    StepView,
    StoppingTurn,
    Veto,
)
from flightlog_hookspecs.events import Record
from flightlog_hookspecs.hooks import GUARDS

ANSWERS: Final = "it answers whatever its point may show it, in time"
LEGAL: Final = "its answers are legal at its point"
LOOKS: Final = "it only looks at what it is shown"
GUARD: Final = "a guard that cannot tell says no"
OBSERVER: Final = "an observer that cannot tell says nothing"

SHOWN: Final[Mapping[Point, type]] = {
    "before_step": StepView,
    "before_request": RequestView,
    "before_tool": ProposedCall,
    "after_tool": FinishedCall,
    "on_request_error": FailedRequest,
    "turn_stopping": StoppingTurn,
    "event_committed": Record,
}


@frozen(kw_only=True)
class HookCase:
    """A hook, and what it may be shown."""

    hook: Hook
    """The hook."""
    views: Sequence[object]
    """What its point may show it: one for each way that it may answer, and one that is none of its business."""
    broken: Callable[[], AbstractContextManager[object]] | None = None
    """A context in which what it needs to make up its mind is not there. None: it needs nothing."""

    def __attrs_post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"hook {self.hook.name!r}: give a view that it is asked about")
        shown = SHOWN[self.hook.point]
        for view in self.views:
            if not isinstance(view, shown):
                raise TypeError(
                    f"hook {self.hook.name!r}: {self.hook.point} shows a {shown.__name__}, not a {type(view).__name__}"
                )


def hook_checks(case: HookCase) -> Iterator[Check]:
    """Every check of `case`."""
    left_out = {"broken"} if case.broken is None else set()
    return checks_of(case.hook.name, case, {rule: of for rule, of in RULES.items() if rule not in left_out})


async def _answers(case: HookCase) -> None:
    for view in case.views:
        await _answer(case, view)


async def _legal(case: HookCase) -> None:
    for view in case.views:
        if error := objection(case.hook.point, await _answer(case, view)):
            raise Broken(LEGAL, f"to {view!r:.200} it {error}")


async def _looks(case: HookCase) -> None:
    for view in case.views:
        before = deepcopy(view)
        await _answer(case, view)
        if view != before:
            raise Broken(LOOKS, f"it was shown {before!r:.200} and left {view!r:.200}")


async def _broken(case: HookCase) -> None:
    """What raises or comes late is a no of a guard, and nothing of all others: so is such an answer."""
    assert case.broken is not None
    guard = case.hook.point in GUARDS
    for view in case.views:
        with case.broken():
            try:
                answer = await _asked(case.hook, view)
            except Failed:
                continue
        if guard and not isinstance(answer, (Deny, Ask, Veto)):
            raise Broken(GUARD, f"to {view!r:.200} it said {answer!r:.200}; let it raise, or say no")
        if not guard and answer is not None:
            raise Broken(OBSERVER, f"to {view!r:.200} it said {answer!r:.200}; let it raise, or return None")


async def _answer(case: HookCase, view: object) -> object:
    try:
        return await _asked(case.hook, view)
    except Failed as failed:
        raise Broken(ANSWERS, f"to {view!r:.200} it did not: {failed}") from failed


async def _asked(hook: Hook, view: object) -> object:
    return await call(hook.body, view, limit_s=hook.limit_s, threads=trio.CapacityLimiter(1))


RULES: Final[Mapping[str, Callable[[HookCase], Awaitable[None]]]] = {
    "answers": _answers,
    "legal": _legal,
    "looks": _looks,
    "broken": _broken,
}
