"""Medians, spreads and relative changes. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from infra.errors import BadInput
from tasks.shared.records import Reading

NEAR_ZERO = 1e-9
"""Below this a baseline is no denominator (case OB1: 1e-16 preemptions gave giant gains)."""


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing, or when any value is not finite."""
    if not values or not all(math.isfinite(v) for v in values):
        return None
    return float(statistics.median(values))


def spread_pct(values: Sequence[float]) -> float | None:
    """(max - min) / |median| over repeats, %; None with fewer than two values or around zero."""
    middle = median(values)
    if middle is None or len(values) < 2 or abs(middle) < NEAR_ZERO:
        return None
    return (max(values) - min(values)) / abs(middle) * 100


def change(baseline: Reading, candidate: Reading, *, absolute_floor: float = 0.0) -> tuple[float | None, float | None]:
    """How far the candidate lies from the baseline: (per cent, absolute in the reading's unit).

    Both are None when either side is unknown, or their difference is no finite number. Where the baseline is at or
    below `absolute_floor` there is no denominator: the percentage is 0 when the candidate is also there, and None when
    it is not (case OB1).

    Raises:
        BadInput: the two sides are in different units.
    """
    if baseline.value is None or candidate.value is None:
        return None, None
    if baseline.unit and candidate.unit and baseline.unit != candidate.unit:
        raise BadInput(f"a baseline in {baseline.unit} cannot be compared with a candidate in {candidate.unit}")
    absolute = candidate.value - baseline.value
    if not math.isfinite(absolute):
        return None, None
    floor = max(absolute_floor, NEAR_ZERO)
    if abs(baseline.value) <= floor:
        return (0.0 if abs(candidate.value) <= floor else None), absolute
    relative = absolute / abs(baseline.value) * 100
    return (relative if math.isfinite(relative) else None), absolute
