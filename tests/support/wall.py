"""A wall clock for tests: it stands until somebody puts it."""

from __future__ import annotations

from attrs import define

from flightlog.runtime.clock import Clock
from support.kernels import new_id

START_US = 1_700_000_000_000_000
S_US = 1_000_000


@define
class Wall:
    """A wall clock that somebody puts."""

    now_us: int = START_US

    @property
    def clock(self) -> Clock:
        """It."""
        return Clock(now_us=lambda: self.now_us, monotonic_us=lambda: 0, new_id=new_id)

    def forward(self, seconds: float) -> None:
        """Put it forward, or back."""
        self.now_us += round(seconds * S_US)
