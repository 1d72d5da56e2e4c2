"""From series to one reading: sums that stay unknown when a part is. Used by every window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ParamSpec

from infra.metrics.histograms import Buckets
from infra.metrics.increases import Increases, NoReading
from infra.metrics.reader import MetricReadFailed, Series
from infra.readings import Reading

P = ParamSpec("P")


def guarded(unit: str, take: Callable[P, Reading], *args: P.args, **kwargs: P.kwargs) -> Reading:
    """The reading, or unknown with the cause and the query that failed."""
    try:
        return take(*args, **kwargs)
    except NoReading as fault:
        return Reading.unknown(fault.cause, unit=unit, source=fault.source)
    except MetricReadFailed as fault:
        return Reading.unknown(f"{fault.query} failed: {fault.cause}", unit=unit, source=fault.query)


def summed_buckets(found: Increases) -> Buckets:
    """Bucket increases summed over series.

    Raises:
        NoReading: no buckets (native histograms have none), or series with different bounds.
    """
    counts: dict[str, float] = {}
    bounds: dict[tuple[tuple[str, str], ...], set[float]] = {}
    for entry in found.series:
        le = entry.labels.get("le", "")
        if not le:
            continue
        # Spellings differ between exporters: 1 and 1.0 are one bound.
        spelled = repr(float(le))
        counts[spelled] = counts.get(spelled, 0.0) + entry.amount
        rest = tuple(sorted((k, v) for k, v in entry.labels.items() if k != "le"))
        bounds.setdefault(rest, set()).add(float(le))
    if not counts:
        raise NoReading("the histogram exports no buckets", found.source)
    if len({frozenset(b) for b in bounds.values()}) > 1:
        raise NoReading("the replicas do not share the same histogram bounds", found.source)
    try:
        return Buckets.of(counts)
    except ValueError as fault:
        raise NoReading(f"the buckets are not a histogram ({fault})", found.source) from fault


def finite(series: Series, query: str) -> float:
    """The last value.

    Raises:
        NoReading: NaN or infinite.
    """
    if not math.isfinite(series.value):
        raise NoReading(f"{query} gave {series.value}", query)
    return series.value


def error_total(parts: Sequence[Reading]) -> Reading:
    """Sum of counts; unknown as soon as one of them is."""
    for part in parts:
        if part.value is None:
            return Reading.unknown(part.cause, unit="requests", source=part.source)
    return Reading.of(
        math.fsum(part.value or 0 for part in parts),
        "requests",
        source=" + ".join(part.source for part in parts),
    )
