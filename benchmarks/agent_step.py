"""A durable agent step: what it costs flightlog and others, at the start and at the end, in time, bytes and memory.

A step is a user message, an answer with one call (300 B) and its result (2 KB), durable so that it resumes at every
point. All contestants take turns, are killed with SIGKILL, and have to come back with every step in a fresh process.
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Final

from contest import Runner, medians, take_turns
from measure import Answer, Ratio, absolute, against, show

STEPS: Final = 1_000
LONG_STEPS: Final = 3_000
AT_A_TIME: Final = 10
WINDOW: Final = 100
OURS: Final = "flightlog"
JOURNAL: Final = "flightlog, journal alone"
FLOOR: Final = "bare apsw, 3 commits FULL"
REDUCER: Final = "LangGraph, list reducer"
CONTESTANTS: Final = {
    FLOOR: "plain",
    "JSONL, append + fdatasync": "plain",
    JOURNAL: "ours",
    OURS: "ours",
    "openai-agents": "openai_agents",
    "openai-agents, reading its history": "openai_agents",
    "DBOS, one workflow": "dbos_sqlite",
    "DBOS, a workflow per step": "dbos_sqlite",
    "pydantic-ai, history rewritten": "pydantic_history",
    REDUCER: "langgraph_saver",
    "LangGraph, DeltaChannel": "langgraph_saver",
    "LangGraph, DeltaChannel in one run": "langgraph_saver",
}
LINEAR: Final = (
    FLOOR,
    "JSONL, append + fdatasync",
    JOURNAL,
    OURS,
    "openai-agents",
    "DBOS, one workflow",
    "LangGraph, DeltaChannel in one run",
)
"""Those that are still usable after the first thousand."""
WANTED: Final = {
    "openai-agents, reading its history": (8, 15),
    "DBOS, one workflow": (5, 10),
    REDUCER: (40, 90),
    "LangGraph, DeltaChannel in one run": (3, 5),
}
"""How much faster a step at step 1,000 is to be, and would be at best."""


def main() -> Answer:
    """Let them take turns to 1,000 steps, and those that can to 3,000; then kill all, and resume each."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        runners = {
            name: Runner(module, name, Path(folder) / str(number))
            for number, (name, module) in enumerate(CONTESTANTS.items())
        }
        take_turns(runners.values(), until=STEPS, at_a_time=AT_A_TIME)
        sizes = {name: runner.bytes for name, runner in runners.items()}
        peaks = {name: runner.peak_mb for name, runner in runners.items()}
        take_turns([runners[name] for name in LINEAR], until=LONG_STEPS, at_a_time=AT_A_TIME)
        for runner in runners.values():
            runner.kill()
        resumed = {
            name: runner.resume_copies(3) if name in LINEAR else [runner.resume()] for name, runner in runners.items()
        }
    print(f"\na durable agent step, {STEPS:,} of them")
    print(
        f"  {'':<36} {'first 100':>10} {'last 100':>10} {'mean':>10} us, {'MB':>8} {'peak MB':>8} {'resumed in ms':>14}"
    )
    for name, runner in runners.items():
        first, last = (
            statistics.median(runner.wall_us[start : start + WINDOW]) for start in (AT_A_TIME, STEPS - WINDOW)
        )
        mean = statistics.fmean(runner.wall_us[:STEPS])
        print(
            f"  {name:<36} {first:>10.0f} {last:>10.0f} {mean:>10.0f}     "
            f"{sizes[name] / 1e6:>8.1f} {peaks[name]:>8.1f} {statistics.median(resumed[name]):>9.1f}, "
            f"{len(runner.wall_us):,} steps"
        )
    answer = Answer(
        [*_faster(runners), *_smaller(sizes), *_lighter(peaks), *_resumed(resumed)],
        {
            "microseconds of a step": {name: _curve(runner.wall_us) for name, runner in runners.items()},
            "seconds until step n": {
                name: [
                    (at + 1, total / 1e6) for at, total in enumerate(accumulate(runner.wall_us)) if (at + 1) % 50 == 0
                ]
                for name, runner in runners.items()
            },
        },
    )
    show(answer)
    return answer


def _faster(runners: dict[str, Runner]) -> list[Ratio]:
    ratios = []
    for ours in (OURS, JOURNAL):
        mine = medians(runners[ours].wall_us, STEPS - WINDOW, STEPS, AT_A_TIME)
        for name in CONTESTANTS:
            if name in (OURS, JOURNAL, FLOOR) or (ours == JOURNAL and name not in WANTED):
                continue
            theirs = medians(runners[name].wall_us, STEPS - WINDOW, STEPS, AT_A_TIME)
            reach, dream = WANTED.get(name, (None, None))
            ratios.append(
                against(
                    f"a step at {STEPS:,}: {name} / {ours}", theirs, mine, reach=reach, dream=dream, more_is_better=True
                )
            )
        bare = medians(runners[FLOOR].wall_us, STEPS - WINDOW, STEPS, AT_A_TIME)
        ratios.append(against(f"a step at {STEPS:,}: {ours} / {FLOOR}", mine, bare))
    return ratios


def _smaller(sizes: dict[str, int]) -> list[Ratio]:
    mine = [sizes[OURS]]
    return [
        against(f"bytes after {STEPS:,} steps / {FLOOR}", mine, [sizes[FLOOR]], reach=1.5, dream=1.2),
        against(f"bytes after {STEPS:,} steps: {JOURNAL} / {FLOOR}", [sizes[JOURNAL]], [sizes[FLOOR]]),
        against(
            f"bytes after {STEPS:,} steps: {REDUCER} / {OURS}",
            [sizes[REDUCER]],
            mine,
            reach=600,
            dream=900,
            more_is_better=True,
        ),
    ]


def _lighter(peaks: dict[str, float]) -> list[Ratio]:
    return [absolute(f"peak memory of {STEPS:,} steps", [peaks[OURS]], "MB", reach=45, dream=35)]


def _resumed(resumed: dict[str, list[float]]) -> list[Ratio]:
    return [
        against(f"resume: {name} / {OURS}", resumed[name], resumed[OURS], more_is_better=True)
        for name in LINEAR
        if name not in (OURS, JOURNAL)
    ]


def _curve(taken: list[float]) -> list[tuple[float, float]]:
    """The median of every fifty steps."""
    return [(at + 50, statistics.median(taken[at : at + 50])) for at in range(0, len(taken), 50)]


if __name__ == "__main__":
    main()
