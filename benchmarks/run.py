"""All benchmarks, one after the other, each in a process of its own; then the table, the figures and the plots.

`run.py NAME...` runs some of them and leaves the figures of the others as they are; with `--record` later runs are held
against what is written now.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import report
from measure import Answer

QUESTIONS: Final = {
    "durable_append": "1. A durable append",
    "durable_turn": "2. A durable turn against its own rows",
    "agent_step": "2. A durable agent step against others",
    "growth": "3. Growth",
    "resume": "4. Resume",
    "streaming": "5. Streaming",
    "start_up": "6. Start-up",
    "many_sessions": "7. Many sessions",
    "heartbeat": "The loop is not blocked",
    "checkpoints": "What checkpoints cost",
    "token_estimate": "The estimate of tokens",
}


def main() -> None:
    """Run them."""
    record, names = "--record" in sys.argv, [name for name in sys.argv[1:] if name != "--record"]
    found: dict[str, Answer] = {}
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        for name in names or QUESTIONS:
            start = time.monotonic()
            kept = Path(folder) / f"{name}.json"
            code = f"import {name}, report; report.keep({name}.main(), {str(kept)!r})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
            print(f"  [{name} took {time.monotonic() - start:.0f} s]", flush=True)
            found[QUESTIONS[name]] = report.kept(kept)
    report.write(list(QUESTIONS.values()), found, record=record)


if __name__ == "__main__":
    main()
