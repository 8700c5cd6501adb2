"""What a run of all benchmarks leaves behind: figures for programs, a table for people, plots.

A figure got worse when its whole spread lies on the bad side of the recorded one's: more than both noises explain.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import apsw
from attrs import asdict

import flightlog
from flightlog.store.statements import statements
from measure import Answer, Ratio

RESULTS: Final = Path(__file__).parent / "results"
FIGURES: Final = RESULTS / "figures.json"
RECORDED: Final = RESULTS / "recorded.json"
"""The figures of the run that others are held against."""
SLACK: Final = 0.05
"""What was measured once has no spread of its own."""
PEERS: Final = ("langgraph", "langgraph-checkpoint-sqlite", "openai-agents", "dbos", "pydantic-ai-slim")


def keep(answer: Answer, path: str) -> None:
    """Write an answer to `path`, for the process that asked."""
    Path(path).write_text(json.dumps({"ratios": [asdict(ratio) for ratio in answer.ratios], "curves": answer.curves}))


def kept(path: Path) -> Answer:
    """Read it."""
    value = json.loads(path.read_text())
    return Answer([Ratio(**ratio) for ratio in value["ratios"]], value["curves"])


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    cpu = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?: ?"
    )
    settings = " ".join(statements()["connection_settings"].split())
    return {
        "cpu": cpu.split(": ")[1],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": os.getloadavg()[2],
        "python": platform.python_version(),
        "flightlog": flightlog.__version__,
        "sqlite": apsw.sqlite_lib_version(),
        "settings": f"{settings} PRAGMA synchronous=FULL for barriers, else NORMAL",
        **{name: version(name) for name in PEERS},
    }


def write(questions: Sequence[str], found: Mapping[str, Answer], *, record: bool) -> None:
    """Write what was found, beside what is there of other questions."""
    RESULTS.mkdir(exist_ok=True)
    recorded = {ratio.name: ratio for answer in _read(RECORDED).values() for ratio in answer.ratios}
    found = _read(FIGURES) | dict(found)
    found = {question: found[question] for question in questions if question in found}
    about = machine()
    ratios = [{"question": name, **asdict(ratio)} for name, answer in found.items() for ratio in answer.ratios]
    curves = [
        {"question": name, "plot": plot, "curves": curves}
        for name, answer in found.items()
        for plot, curves in answer.curves.items()
    ]
    lines = ",\n".join(map(json.dumps, ratios)), ",\n".join(map(json.dumps, curves))
    FIGURES.write_text(f'{{"machine": {json.dumps(about)},\n"ratios": [\n{lines[0]}\n],\n"plots": [\n{lines[1]}\n]}}\n')
    if record or not RECORDED.exists():
        RECORDED.write_text(FIGURES.read_text())
    (RESULTS / "README.md").write_text(_page(found, about, recorded))
    _plot(found)
    every = [ratio for answer in found.values() for ratio in answer.ratios]
    worse = [ratio.name for ratio in every if _is_worse(ratio, recorded.get(ratio.name))]
    print(f"\nwritten to {RESULTS}; worse than recorded by more than the noise: {', '.join(worse) or 'nothing'}")


def _read(path: Path) -> dict[str, Answer]:
    """The answers in a file of figures, by question."""
    if not path.exists():
        return {}
    value = json.loads(path.read_text())
    ratios, curves = dict[str, list[Ratio]](), dict[str, dict[str, Any]]()
    for row in value["ratios"]:
        ratios.setdefault(row.pop("question"), []).append(Ratio(**row))
    for row in value["plots"]:
        curves.setdefault(row["question"], {})[row["plot"]] = row["curves"]
    return {question: Answer(of, curves.get(question, {})) for question, of in ratios.items()}


def _is_worse(ratio: Ratio, recorded: Ratio | None) -> bool:
    if recorded is None:
        return False
    if ratio.more_is_better:
        return ratio.high < recorded.low * (1 - SLACK)
    return ratio.low > recorded.high * (1 + SLACK)


def _page(found: Mapping[str, Answer], about: Mapping[str, Any], recorded: Mapping[str, Ratio]) -> str:
    lines = [
        "# Figures",
        "",
        "Written by `make bench`. A median, and the quartiles of its rounds. Carry ratios, not times.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    for question, one in found.items():
        lines += ["", f"## {question}", ""]
        lines += ["| figure | here | spread | to reach | dream | recorded | |", "|---|---:|---:|---:|---:|---:|---|"]
        for ratio in one.ratios:
            before = recorded.get(ratio.name)
            bound = "≥" if ratio.more_is_better else "≤"
            wanted = [f"{bound} {value:g}" if value is not None else "" for value in (ratio.reach, ratio.dream)]
            verdict = {True: "reached", False: "**missed**", None: ""}[ratio.reached]
            if _is_worse(ratio, before):
                verdict += " **worse**"
            lines.append(
                f"| {ratio.name} | {_number(ratio.value)} {ratio.unit} | {_number(ratio.low)} to {_number(ratio.high)} "
                f"| {wanted[0]} | {wanted[1]} | {_number(before.value) if before else ''} | {verdict.strip()} |"
            )
        lines += [f"\n![{title}]({_file(title)})" for title in one.curves]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _file(title: str) -> str:
    return title.replace(",", "").replace(" ", "-") + ".svg"


def _plot(found: Mapping[str, Answer]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "flightlog"
    from matplotlib import pyplot as plt

    for one in found.values():
        for title, curves in one.curves.items():
            figure, axes = plt.subplots(figsize=(8, 5))
            for name, points in curves.items():
                ours = name.startswith("flightlog")
                axes.plot(*zip(*points, strict=True), label=name, linewidth=2.5 if ours else 1.2)
            axes.set(xscale="log", yscale="log", title=title, xlabel="events" if "events" in title else "steps")
            axes.grid(visible=True, which="both", alpha=0.2)
            axes.legend(fontsize="x-small")
            figure.savefig(RESULTS / _file(title), metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
