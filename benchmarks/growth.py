"""Growth: what a step costs, and how many bytes it adds to file and memory, from 10 to 10,000 steps of one session.

With and without compaction, beside bare apsw. Processor time, in memory where there is such a folder: what is asked is
whether our own work grows, not how the disk is.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from contest import Runner, take_turns
from flightlog.testing.memory import memory_folder
from measure import Answer, Ratio, absolute, middle, show

MARKS: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000)
EARLY: Final = 1_000
FLAT_B: Final = 500
"""SQLite fills its cache of pages, and no more. A step has 2.4 kB of words."""
OURS: Final = "flightlog"
COMPACTING: Final = "flightlog, compacting"
FLOOR: Final = "bare apsw, 3 commits FULL"
CONTESTANTS: Final = {FLOOR: "plain", OURS: "ours", COMPACTING: "ours"}


def slopes(cpu_us: Sequence[float]) -> list[float]:
    """Of the time in all, over the steps, both as logarithms: 1 is linear. Between some pairs of marks."""
    total = list(accumulate(cpu_us))
    ends = (MARKS[-1] // 2, MARKS[-1] * 3 // 4, MARKS[-1])
    return [math.log(total[end - 1] / total[EARLY - 1]) / math.log(end / EARLY) for end in ends]


def main() -> Answer:
    """Let them take turns, and look at each mark."""
    with memory_folder() as memory, tempfile.TemporaryDirectory(dir=memory) as folder:
        runners = {
            name: Runner(module, name, Path(folder) / str(number))
            for number, (name, module) in enumerate(CONTESTANTS.items())
        }
        sizes: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
        for before, mark in zip((0, *MARKS), MARKS, strict=False):
            take_turns(runners.values(), until=mark, at_a_time=min(mark - before, 100))
            for name, runner in runners.items():
                sizes[name].append((mark, runner.bytes))
        for runner in runners.values():
            runner.kill()
            runner.resume()
    print(f"\ngrowth to {MARKS[-1]:,} steps: microseconds of a step, bytes in the file for each, resident MB")
    ratios: list[Ratio] = []
    steps = {}
    for name, runner in runners.items():
        total = [0.0, *accumulate(runner.cpu_us)]
        steps[name] = [
            (mark, (total[mark] - total[before]) / (mark - before))
            for before, mark in zip((0, *MARKS), MARKS, strict=False)
        ]
        memory_mb = dict(runner.memory)
        for (mark, cpu), (_, size) in zip(steps[name], sizes[name], strict=True):
            print(f"  {name:<28} {mark:>8,} {cpu:>8.0f} us {size / mark:>8.0f} B {memory_mb[mark]:>8.1f} MB")
        if name == FLOOR:
            continue
        slope, low, high = middle(slopes(runner.cpu_us))
        ratios += [
            Ratio(f"{name}: slope of time, {EARLY:,} to {MARKS[-1]:,} steps", slope, low, high, 1.05, 1.0, unit=""),
            absolute(
                f"{name}: memory, bytes a step from {EARLY:,} to {MARKS[-1]:,}",
                [(memory_mb[MARKS[-1]] - memory_mb[EARLY]) * 1e6 / (MARKS[-1] - EARLY)],
                "B",
                **({"reach": FLAT_B} if name == COMPACTING else {}),
            ),
            absolute(f"{name}: file, bytes a step / bare apsw", [sizes[name][-1][1] / sizes[FLOOR][-1][1]], "x"),
        ]
    answer = Answer(
        ratios,
        {
            "processor microseconds of a step, by steps so far": steps,
            "resident megabytes, by steps so far": {name: runner.memory for name, runner in runners.items()},
        },
    )
    show(answer)
    return answer


if __name__ == "__main__":
    main()
