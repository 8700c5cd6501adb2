"""Judging what a crash or a fault left behind: recover it twice over, drive it to the end, ask the oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import trio
from attrs import define, field, frozen

from flightlog.runtime.error_groups import leaves
from flightlog.runtime.recovery import OnCrash
from flightlog.runtime.registry import Registry
from flightlog.testing.faults import oracles
from flightlog.testing.faults.disk import WORKSPACE, Files, digest_of
from flightlog.testing.faults.life import Bench, Found, Log, Row, live, misleading, read_log, recovered, registry_of
from flightlog.testing.faults.oracles import Broken, Essence, Places
from flightlog.testing.faults.workloads import Judging, Workload, mode_of
from flightlog.testing.faults.world import Done, Fact, World
from flightlog_hookspecs.errors import FlightlogError
from flightlog_hookspecs.events import (
    InboxSplice,
    Record,
    RequestSent,
    SessionCreated,
    SubagentSpawned,
    ToolCall,
    ToolResult,
)


@frozen(eq=False)
class Ending:
    """What a recovered life came to: what it added to the facts, what is wrong with it, its calls and their results.

    There are no `calls` (None) when it failed. `verdict` says what is wrong given all that took effect in any life.
    """

    facts: Sequence[Fact]
    broken: Sequence[Broken]
    calls: Sequence[Record] | None
    on_crash: OnCrash
    verdict: Callable[[Sequence[Done]], Iterable[Broken]] = field(default=lambda _: ())

    def with_earlier(self, facts: Sequence[Fact]) -> list[Broken]:
        """All that is wrong, given what was known when this life began."""
        everything = [*facts, *self.facts]
        broken = [*self.broken, *oracles.effects(everything, self.on_crash)]
        broken += self.verdict([fact for fact in everything if isinstance(fact, Done)])
        return broken + (list(oracles.intents(everything, self.calls)) if self.calls is not None else [])


@define
class Judge:
    """Knows what the unbroken run came to. `drives` counts how often it drove a log to its end.

    With `memo` that is once for all files that open with the same rows and letters, and hold the same of what tools
    wrote: a kernel knows nothing else, so what it does from there is the same; except that one which goes on asks what
    has taken effect.
    """

    bench: Bench
    workload: Workload
    seed: int
    memo: bool
    essences: Mapping[str, Essence]
    requests: Mapping[str, frozenset[str]]
    background: frozenset[str]
    registry: Registry
    drives: int = field(default=0, init=False)
    _endings: dict[object, Ending] = field(factory=dict, init=False)

    @classmethod
    def by(cls, bench: Bench, workload: Workload, seed: int, unbroken: Log, *, memo: bool = True) -> Judge:
        """A judge who compares with the `unbroken` log.

        A child is not compared: which call has it, and so its name, depends on the crash. Its effects are, and what
        it was sent and what came of it are judged.
        """
        grown_up = [name for name, records in unbroken.records.items() if not _parent(records)]
        background = oracles.in_background(unbroken.all_records())
        essences = {name: oracles.essence(unbroken.messages[name], background) for name in grown_up}
        requests = {
            name: frozenset(r.event.sha256 for r in records if isinstance(r.event, RequestSent))
            for name, records in unbroken.records.items()
            if name in essences
        }
        return cls(bench, workload, seed, memo, essences, requests, background, registry_of(workload, bench.workspace))

    @property
    def on_crash(self) -> OnCrash:
        """What the workload does about turns that a crash leaves open."""
        return mode_of(self.workload)

    async def ending(self, files: Files, found: Found, number: int, facts: Sequence[Fact]) -> Ending:
        """What life `number` comes to that begins with `files`, which open with `found`, after these `facts`."""
        done = [fact for fact in facts if isinstance(fact, Done)] if self.on_crash == "continue" else []
        written = digest_of({name: raw for name, raw in files.items() if name.startswith(WORKSPACE)})
        state = (number, found.state, written, *done) if self.memo else object()
        if state not in self._endings:
            self.drives += 1
            self._endings[state] = await self._drive(files, found, number, done)
        return self._endings[state]

    async def _drive(self, files: Files, found: Found, number: int, done: Sequence[Done]) -> Ending:
        """Recover `files` twice over, then let the workload come to its end on them."""
        world = World(earlier=done)
        counts = found.counts()
        try:
            broken = await self._recover_twice(files, found, number)
            self.bench.lay_out(files)
            await live(self.bench.path, self.workload, world, seed=self.seed, number=number)
            log = read_log(self.bench.path, self.registry)
        except BaseException as error:
            return Ending(world.ledger, [refused(error)], None, self.on_crash)
        for name, records in log.records.items():
            if name in counts:
                recovery = oracles.recovery if self.on_crash == "close" else oracles.going_on
                broken += recovery(records, counts[name])
            broken += oracles.one_outcome(records)
            broken += oracles.shortened(records)
            broken += oracles.within_budget(records)
            broken += oracles.streamed(records, self.on_crash)
            broken += oracles.tasks(records, log.messages)
            broken += oracles.worked(records)
            if _parent(records):
                continue
            if not isinstance(self.workload, Judging):
                broken += oracles.conversation(log.messages[name], self.essences[name], self.background)
            if self.workload.steady:
                broken += oracles.requests(records, self.requests[name])
        if lost := self.essences.keys() - log.records.keys():
            broken.append(Broken("P7", f"there is no session {sorted(lost)}"))
        broken += oracles.files(self.bench.photograph(), self.workload, log.all_records())
        broken += [
            Broken("P4", f"the snapshot of session {name!r} is not what its rows come to")
            for name in misleading(self.bench.path)
        ]
        verdict = partial(oracles.verdict, self.workload, log.all_records())
        calls = [
            record for record in log.all_records() if isinstance(record.event, (ToolCall, ToolResult, SubagentSpawned))
        ]
        return Ending(world.ledger, broken, calls, self.on_crash, verdict)

    async def _recover_twice(self, files: Files, found: Found, number: int) -> list[Broken]:
        once, photograph = await self._recovered(files, found, number)
        twice, _ = await self._recovered(photograph, found, number + 1)
        return list(oracles.recovered_again(once, twice))

    async def _recovered(self, files: Files, found: Found, number: int) -> tuple[list[Row], Files]:
        self.bench.lay_out(files)
        return await recovered(self.bench, self.workload, self.registry, found.keys, seed=self.seed, number=number)


def _parent(records: Sequence[Record]) -> str:
    """The session that this one is a child of, "" for none."""
    first = records[0].event
    return first.parent_session if isinstance(first, SessionCreated) else ""


def places_in(found: Found, log: Log) -> Places:
    """Where the things that facts speak of stand in an open log, of which `log` has the records."""
    names = {key: name for name, key in found.keys.items()}
    events = {(names[row[1]], row[2]): row[0] for row in found.rows}
    calls: dict[str, int] = {}
    messages: dict[str, int] = {}
    results: dict[tuple[str, int], int] = {}
    for record in log.all_records():
        row = events[record.session, record.seq]
        if isinstance(record.event, ToolCall):
            calls.setdefault(record.event.invocation_id, row)
        elif isinstance(record.event, InboxSplice):
            messages.setdefault(record.event.message_id, row)
        elif isinstance(record.event, ToolResult) and record.event.call_seq is not None:
            results.setdefault((record.session, record.event.call_seq), row)  # before one that says it in short
    return Places(events, calls, messages, results)


def leaf(error: BaseException) -> BaseException:
    """The first single error in `error`. Raises it all when it is none of a kernel's making."""
    found = leaves(error)[0]
    if isinstance(found, (KeyboardInterrupt, trio.Cancelled)):
        raise error
    return found


def refused(error: BaseException) -> Broken:
    """P3: what follows a crash alone raises nothing; what follows a fault, nothing but our own errors."""
    cause = leaf(error)
    named = "" if isinstance(cause, FlightlogError) else " (not one of ours)"
    return Broken("P3", f"{type(cause).__name__}{named}: {cause}")
