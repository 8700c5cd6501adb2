"""What a hunt came to."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import define, field, frozen

from flightlog.testing.faults.golden import Golden
from flightlog.testing.faults.oracles import Broken, Promise


@frozen
class Violation:
    """A promise that was broken, the one line of Python that breaks it again, and what can be kept of it."""

    promise: Promise
    how: str
    reproducer: str
    golden: Golden | None = field(default=None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"{self.promise}: {self.how}\n    {self.reproducer}"


@define
class Report:
    """Counts and violations.

    `faults` by kind; `images`: how many of them left a disk of its own; `drives`: how many were driven to
    the end, the others having come to the same rows as one of those; `refusals` by the error's name.
    """

    faults: Counter[str] = field(factory=Counter)
    images: int = 0
    drives: int = 0
    refusals: Counter[str] = field(factory=Counter)
    violations: list[Violation] = field(factory=list)

    def add(self, broken: Broken, reproducer: str, golden: Golden | None = None) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(broken.promise, broken.how, reproducer, golden))

    def merge(self, other: Report) -> None:
        """Take in what another hunt found."""
        self.faults += other.faults
        self.images += other.images
        self.drives += other.drives
        self.refusals += other.refusals
        self.violations += other.violations

    @property
    def points(self) -> int:
        """How many faults there were."""
        return self.faults.total()

    def table(self) -> str:
        """All of it in Markdown."""
        lines = ["| fault | tried |", "|---|---:|"]
        lines += [f"| {kind} | {times:,} |" for kind, times in sorted(self.faults.items())]
        lines += [
            f"| **all** | **{self.points:,}** |",
            "",
            "| | |",
            "|---|---:|",
            f"| images that differ in a byte, each opened by the real kernel | {self.images:,} |",
            f"| states driven to the end of the workload | {self.drives:,} |",
            *(f"| answered by {code} | {times:,} |" for code, times in sorted(self.refusals.items())),
            f"| **violations** | **{len(self.violations)}** |",
        ]
        return "\n".join([*lines, *(f"\n{violation}" for violation in self.violations)])

    def as_json(self) -> dict[str, Any]:
        """All but the golden files, as JSON values."""
        return {
            "faults": dict(self.faults),
            "images": self.images,
            "drives": self.drives,
            "refusals": dict(self.refusals),
            "violations": [[one.promise, one.how, one.reproducer] for one in self.violations],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Report:
        """What `as_json` gave."""
        return cls(
            faults=Counter(value["faults"]),
            images=value["images"],
            drives=value["drives"],
            refusals=Counter(value["refusals"]),
            violations=[Violation(*one) for one in value["violations"]],
        )

    def __str__(self) -> str:
        counted = ", ".join(f"{times} {kind}" for kind, times in sorted(self.faults.items()))
        lines = [f"faults: {counted or 'none'}; distinct images: {self.images}; driven to the end: {self.drives}"]
        if self.refusals:
            lines.append("refusals: " + ", ".join(f"{times} {code}" for code, times in sorted(self.refusals.items())))
        return "\n".join([*lines, *map(str, self.violations)])
