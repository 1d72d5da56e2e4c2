"""Quantiles of bucketed observations that say how far they can be trusted. Pure.

PromQL's `histogram_quantile` can only return bounds and straight lines between them: what lies under the
first bound or over the last finite one is invented. Here such a quantile carries a mark, and a marked
quantile may not by itself pass or fail a guard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, model_validator

from infra.readings import Mark, Reading

FEW_SAMPLES_PER_TAIL = 5
"""Observations that must lie beyond the quantile on average: a p99 needs 500 of them. With fewer the value is
one or two requests, not a quantile."""


class Buckets(BaseModel):
    """Observations of one window: cumulative counts by upper bound, as Prometheus keeps them.

    Bounds are in the metric's own unit (seconds for latencies), ascending, the last one infinite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @model_validator(mode="after")
    def _well_formed(self) -> Buckets:
        if len(self.bounds) != len(self.counts) or not self.bounds:
            raise ValueError("a histogram has one count per bound, and at least one bound")
        if list(self.bounds) != sorted(set(self.bounds)) or not math.isinf(self.bounds[-1]):
            raise ValueError("bounds ascend and end in +Inf")
        if any(not math.isfinite(c) or c < 0 for c in self.counts):
            raise ValueError("counts are finite and not negative")
        if any(b < a for a, b in zip(self.counts, self.counts[1:], strict=False)):
            raise ValueError("cumulative counts do not fall")
        return self

    @classmethod
    def of(cls, counts: Mapping[str, float]) -> Buckets:
        """From counts keyed by the text of `le` ("0.3", "+Inf"), in any order."""
        pairs = sorted((float(bound), count) for bound, count in counts.items())
        return cls(bounds=tuple(b for b, _ in pairs), counts=tuple(c for _, c in pairs))

    @property
    def total(self) -> float:
        """All observations of the window."""
        return self.counts[-1]


def needed_samples(q: float) -> int:
    """Fewest observations behind an exact quantile `q` (0 < q < 1)."""
    return math.ceil(FEW_SAMPLES_PER_TAIL / max(min(q, 1 - q), 1e-9))


def _position(buckets: Buckets, q: float) -> tuple[int, float]:
    rank = q * buckets.total
    index = next(i for i, count in enumerate(buckets.counts) if count >= rank and count > 0)
    return index, rank


def quantile(
    buckets: Buckets,
    q: float,
    *,
    unit: str,
    scale: float = 1.0,
    source: str = "",
    min_samples: int | None = None,
) -> Reading:
    """The quantile `q` with its validity mark, interpolated inside its bucket.

    Below the first bound the bound itself is given (the truth is at most that), in the overflow the last
    finite bound (the truth is at least that).

    Args:
        scale: factor from the histogram's unit to `unit` (1000 for s to ms).
        min_samples: observations below which the mark is `few_samples`; by default what `q` needs.
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile lies between 0 and 1, not {q}")
    total = buckets.total
    if total == 0:
        return Reading.unknown("no observation in the window", unit=unit, source=source)
    index, rank = _position(buckets, q)
    finite = [bound for bound in buckets.bounds if math.isfinite(bound)]
    if not finite:
        return Reading.unknown("the histogram has no finite bound", unit=unit, source=source)
    mark: Mark = "exact"
    cause = ""
    if index == len(buckets.bounds) - 1:
        value, mark = finite[-1], "in_overflow"
        cause = f"p{q * 100:g} lies above the last bound {finite[-1] * scale:g} {unit}: at least that"
    elif index == 0:
        value, mark = finite[0], "below_first_bound"
        cause = f"p{q * 100:g} lies under the first bound {finite[0] * scale:g} {unit}: at most that"
    else:
        low, high = buckets.bounds[index - 1], buckets.bounds[index]
        below, inside = buckets.counts[index - 1], buckets.counts[index] - buckets.counts[index - 1]
        value = low + (high - low) * ((rank - below) / inside)
    fewest = needed_samples(q) if min_samples is None else min_samples
    if mark == "exact" and total < fewest:
        mark, cause = "few_samples", f"p{q * 100:g} of {total:g} observations; {fewest} are needed"
    return Reading.of(value * scale, unit, source=source, samples=total, mark=mark, cause=cause)


def bucket_width(buckets: Buckets, q: float) -> float | None:
    """Width of the bucket that holds the quantile, in the histogram's unit; None where it is open.

    A difference smaller than this is not resolvable by the histogram.
    """
    if buckets.total == 0:
        return None
    index, _ = _position(buckets, q)
    if index == len(buckets.bounds) - 1:
        return None
    return buckets.bounds[index] - (buckets.bounds[index - 1] if index else 0.0)


def nearest_bound(bounds: Sequence[float], wanted: float) -> float | None:
    """The finite bound nearest to `wanted` on a logarithmic scale; None where there is none."""
    finite = [bound for bound in bounds if math.isfinite(bound) and bound > 0]
    if not finite or wanted <= 0:
        return None
    return min(finite, key=lambda bound: abs(math.log(bound / wanted)))


def slower_than(buckets: Buckets, bound: float, *, source: str = "") -> Reading:
    """Observations above an existing bound (exact: no interpolation).

    Raises:
        ValueError: the histogram has no such bound.
    """
    try:
        index = buckets.bounds.index(bound)
    except ValueError:
        raise ValueError(f"{bound:g} is no bound of this histogram") from None
    return Reading.of(buckets.total - buckets.counts[index], "requests", source=source, samples=buckets.total)
