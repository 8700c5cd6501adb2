"""What flightlog weighs: the import above bare Python, and the installed closure of its base dependencies."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import distribution

LIMIT_MB = 25
LIMIT_MS = 150


def import_ms(code: str) -> float:
    """Median milliseconds of a fresh interpreter that runs `code`, above one that runs nothing."""

    def median(code: str) -> float:
        times = []
        for _ in range(9):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append((time.perf_counter() - start) * 1000)
        return statistics.median(times)

    return median(code) - median("pass")


def closure_mb() -> tuple[float, list[str]]:
    """Megabytes of all files of flightlog and what its base install brings, and the names."""
    names, size = ["flightlog"], 0
    for name in names:
        for file in distribution(name).files or ():
            path = file.locate()
            size += path.stat().st_size if path.is_file() else 0  # type: ignore[attr-defined]
        for requirement in distribution(name).requires or ():
            needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
            if "extra ==" not in requirement and applies(requirement) and needed not in names:
                names.append(needed)
    return size / 1e6, names


def applies(requirement: str) -> bool:
    """Whether the requirement's marker holds here."""
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate()


def main() -> dict[str, float]:
    """Measure."""
    megabytes, names = closure_mb()
    lazy, whole = import_ms("import flightlog"), import_ms("import flightlog; flightlog.open_kernel")
    print(f"\nimport flightlog {lazy:.0f} ms, its first use {whole:.0f} ms above bare Python (limit {LIMIT_MS})")
    print(f"installed closure {megabytes:.1f} MB (limit {LIMIT_MB}): {', '.join(names)}")
    return {"import / limit": lazy / LIMIT_MS, "closure / limit": megabytes / LIMIT_MB}


if __name__ == "__main__":
    main()
