"""Resume: from opening the file to the first request ready, for logs of 1,000 to 1,000,000 events.

A turn that a kill cut off, a task with all its checkpoints, and both kept short by compaction, each resumed in a fresh
process, on copies in memory where there is such a folder: from the last snapshot, and with every check on, as
where there is none. How peers resume is measured by `agent_step`, with what they wrote there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from contest import Runner
from contestants.ours import EVERY_CHECK_ON
from flightlog.store.store import Store
from flightlog.testing.memory import memory_folder
from measure import Answer, Ratio, absolute, middle, show

CUT_OFF: Final = "a turn cut off"
CHECKPOINTED: Final = "a task with checkpoints"
COMPACTED: Final = "after compaction"
BOTH: Final = "a task with checkpoints, after compaction"
CONTESTANTS: Final = {
    CUT_OFF: "flightlog, journal alone",
    CHECKPOINTED: "flightlog, as a task",
    COMPACTED: "flightlog, compacting",
    BOTH: "flightlog, as a task, compacting",
}
EVENTS: Final = (1_000, 10_000, 100_000, 1_000_000)
BUILT_BY_THE_LOOP_MAX: Final = 100_000
"""Larger logs are written by the journal alone: the whole loop would take too long."""
ROUNDS: Final = 3
WANTED: Final = {f"{CUT_OFF}{EVERY_CHECK_ON}": (1_000, 450)} | dict.fromkeys((CHECKPOINTED, COMPACTED, BOTH), (100, 20))
"""Milliseconds for 100,000 events."""
WANTED_EVENTS: Final = 100_000


def events_in(folder: Path) -> int:
    """How many events the log has."""
    store = Store.open_to_read(str(folder / "log.db"))
    last_id = int(store.read("last_id")[0][0])
    store.close()
    return last_id


def main() -> Answer:
    """Grow each log, and resume copies of it at each size."""
    ratios: list[Ratio] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    print("\nresume to the first request ready, in a fresh process")
    with memory_folder() as memory, tempfile.TemporaryDirectory(dir=memory) as folder:
        for number, (kind, name) in enumerate(CONTESTANTS.items()):
            runner = Runner("ours", name, Path(folder) / str(number))
            for size in EVENTS:
                if size > BUILT_BY_THE_LOOP_MAX and kind != CUT_OFF:
                    continue
                while (missing := size - events_in(runner.folder)) > 0:
                    per_step = events_in(runner.folder) / max(len(runner.wall_us), 1)
                    runner.step(max(10, int(missing / max(per_step, 8))))
                rounds = ROUNDS if size <= WANTED_EVENTS else 1
                for checks in ("", EVERY_CHECK_ON):
                    taken = runner.resume_copies(rounds, f"{name}{checks}")
                    median, low, high = middle(taken)
                    print(f"  {kind + checks:<40} {size:>9,} events {median:>9.1f} ms ({low:.1f} to {high:.1f})")
                    curves.setdefault(f"{kind}{checks}", []).append((size, median))
                    wanted = WANTED.get(f"{kind}{checks}") if size == WANTED_EVENTS else None
                    reach, dream = wanted or (None, None)
                    ratios.append(absolute(f"{kind}{checks}, {size:,} events", taken, "ms", reach=reach, dream=dream))
            runner.kill()
    answer = Answer(ratios, {"milliseconds to resume, by events": curves})
    show(answer)
    return answer


if __name__ == "__main__":
    main()
