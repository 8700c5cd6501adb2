"""The process of one contestant: `child.py run|resume MODULE NAME FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from contestants.step import Contestant, Pace


def main() -> None:
    """Work as told on the standard input, or resume and say how many steps there were and how long it took."""
    verb, module, name, folder = sys.argv[1:]
    contestant: Contestant = import_module(f"contestants.{module}").CONTESTANTS[name]
    if verb == "run":
        contestant.run(Path(folder), Pace())
        return
    start = time.perf_counter()
    steps = contestant.resume(Path(folder))
    taken = time.perf_counter() - start
    print(json.dumps([steps() if callable(steps) else steps, taken * 1000]), flush=True)
    os._exit(0)  # some have threads that would go on


if __name__ == "__main__":
    main()
