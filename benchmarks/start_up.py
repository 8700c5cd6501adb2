"""Start-up: importing, the first session in a new file, the command line's help, and what is installed.

Each time a fresh interpreter, in turns with one that does nothing and with those that import the peers. All find their
bytecode from the second round on, as what pip has installed does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from measure import Answer, absolute, in_turns, middle, show

ROUNDS: Final = 5
FIRST_SESSION: Final = """
import sys, trio, flightlog
async def main():
    async with flightlog.open_kernel(sys.argv[1] + "/log.db") as kernel:
        async with kernel.session("s") as session:
            assert session.token.seq
trio.run(main)
"""
PROGRAMS: Final = {
    "bare Python": "pass",
    "import flightlog": "import flightlog",
    "all of flightlog": "import flightlog; flightlog.open_kernel",
    "first session": FIRST_SESSION,
    "flightlog --help": "import sys; sys.argv[1:] = ['--help']; from flightlog.cli import main; main()",
    "import langgraph": "import langgraph.graph, langgraph.checkpoint.sqlite",
    "import openai-agents": "import agents",
    "import dbos": "import dbos",
    "import pydantic-ai": "import pydantic_ai",
}
WANTED: Final = {"all of flightlog": (150, 110)}
PEERS: Final = {
    "langgraph": ("langgraph", "langgraph-checkpoint-sqlite"),
    "openai-agents": ("openai-agents",),
    "dbos": ("dbos",),
    "pydantic-ai": ("pydantic-ai-slim",),
}


def running(program: str, folder: Path, bytecode: str) -> float:
    """Seconds of a fresh interpreter that keeps its bytecode in folder `bytecode`."""
    surroundings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, folder], check=True, stdout=subprocess.DEVNULL, env=surroundings)
    return time.perf_counter() - start


def closure_mb(*roots: str) -> float:
    """Megabytes of all files of some distributions and what they need."""
    names, size = list(roots), 0
    for name in names:
        for file in distribution(name).files or ():
            path = Path(str(file.locate()))
            size += path.stat().st_size if path.is_file() and path.suffix != ".pyc" else 0
        for requirement in distribution(name).requires or ():
            needed = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
            if "extra ==" not in requirement and applies(requirement) and needed not in names:
                names.append(needed)
    return (size + own_bytes()) / 1e6 if "flightlog" in roots else size / 1e6


def own_bytes() -> int:
    """Bytes of flightlog itself, which stands where it is worked on."""
    root = Path(__file__).parent.parent
    folders = ("kernel/flightlog", "hookspecs/flightlog_hookspecs", "builtin_plugins/flightlog_plugins")
    files = (path for folder in folders for path in (root / folder).rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".pyc")


def applies(requirement: str) -> bool:
    """Whether the requirement's marker holds here."""
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate()


def main() -> Answer:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as bytecode:
        seconds = in_turns(
            {name: partial(running, program, bytecode=bytecode) for name, program in PROGRAMS.items()}, rounds=ROUNDS
        )
    print("\nmilliseconds of a fresh interpreter, above one that does nothing")
    ratios = []
    for name, taken in seconds.items():
        above = [(one - bare) * 1000 for one, bare in zip(taken, seconds["bare Python"], strict=True)]
        median, low, high = middle(above)
        print(f"  {name:<44} {median:9.1f} ms ({low:.1f} to {high:.1f})")
        if name != "bare Python":
            reach, dream = WANTED.get(name, (None, None))
            ratios.append(absolute(f"{name}, above bare Python", above, "ms", reach=reach, dream=dream))
    ratios.append(absolute("installed, flightlog", [closure_mb("flightlog")], "MB", reach=25, dream=20))
    ratios += [absolute(f"installed, {peer}", [closure_mb(*names)], "MB") for peer, names in PEERS.items()]
    answer = Answer(ratios)
    show(answer)
    return answer


if __name__ == "__main__":
    main()
