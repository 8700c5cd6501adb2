"""What a hunt came to."""

from __future__ import annotations

from collections import Counter

from attrs import define, field, frozen

from flightlog.testing.faults.oracles import Broken, Promise


@frozen
class Violation:
    """A promise that was broken, and the one line of Python that breaks it again."""

    promise: Promise
    how: str
    reproducer: str

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

    def add(self, broken: Broken, reproducer: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(broken.promise, broken.how, reproducer))

    def merge(self, other: Report) -> None:
        """Take in what another hunt found."""
        self.faults += other.faults
        self.images += other.images
        self.drives += other.drives
        self.refusals += other.refusals
        self.violations += other.violations

    def __str__(self) -> str:
        counted = ", ".join(f"{times} {kind}" for kind, times in sorted(self.faults.items()))
        lines = [f"faults: {counted or 'none'}; distinct images: {self.images}; driven to the end: {self.drives}"]
        if self.refusals:
            lines.append("refusals: " + ", ".join(f"{times} {code}" for code, times in sorted(self.refusals.items())))
        return "\n".join([*lines, *map(str, self.violations)])
