"""Progress with an estimate of what is left, from the expected length of each part and how this run compares."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from deployments.demo.load import PEAK_REQUESTS, Load

EXPECTED_S: tuple[tuple[str, float], ...] = (
    ("stack and production", 60),
    ("drill of the switch", 8),
    ("traffic before", 140),
    ("campaign", 1200),
    ("approval", 1),
    ("canary", 160),
    ("traffic after", 90),
    ("report", 8),
)
"""Parts of the demo and how long each is expected to take, until the machine has been measured."""


def remaining_s(parts: Sequence[tuple[str, float]], number: int, in_part_s: float, elapsed_s: float) -> float:
    """Estimated seconds left: later parts as expected, the present one as far as it is not used up, both scaled by
    how this run compares with the expectation so far."""
    before = sum(s for _, s in parts[:number])
    here = parts[number][1]
    # The first parts wait for imports and fixed windows, and say little about how fast this machine measures.
    pace = max(0.8, min(2.0, (elapsed_s - in_part_s) / before)) if before > 100 else 1.0
    return pace * (max(here - in_part_s / max(pace, 1e-9), 0.05 * here) + sum(s for _, s in parts[number + 1 :]))


class Progress:
    """Prints lines with elapsed and remaining time."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._started_s = self._part_s = time.monotonic()
        self._number = 0
        self._expected = dict(EXPECTED_S)
        self._known: set[str] = set()
        self.seconds: dict[str, float] = {}

    def expect(self, name: str, seconds: float) -> None:
        """A part takes this long, as was measured."""
        self._expected[name] = seconds + time.monotonic() - self._part_s if name == self._name else seconds
        self._known.add(name)

    def knows(self, name: str) -> bool:
        """Whether the length of a part was measured."""
        return name in self._known

    def stretch(self, load: Load) -> None:
        """The windows of traffic follow the machine's speed."""
        drain_s = PEAK_REQUESTS * load.alone_s
        self.expect("traffic before", 2 * (load.window_s + 0.9 * drain_s))
        self.expect("traffic after", 2 * (load.window_s + 0.3 * drain_s))

    @property
    def _name(self) -> str:
        return EXPECTED_S[self._number][0]

    def part(self, name: str) -> None:
        """Begin a part of EXPECTED_S."""
        self.close()
        self._number = next(i for i, (n, _) in enumerate(EXPECTED_S) if n == name)
        self._part_s = time.monotonic()
        self.say(f"[bold]{name}[/bold]")

    def close(self) -> None:
        """End the present part."""
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + time.monotonic() - self._part_s

    def say(self, text: str) -> None:
        """One line."""
        now_s = time.monotonic()
        elapsed = now_s - self._started_s
        left = remaining_s(tuple(self._expected.items()), self._number, now_s - self._part_s, elapsed)
        self._out.print(
            f"[dim]{elapsed // 60:3.0f}:{elapsed % 60:02.0f}, about {left / 60:2.0f} min left, {self._name}[/dim]  "
            f"{text}",
            highlight=False,
            soft_wrap=True,
        )
