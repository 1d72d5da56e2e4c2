"""Throughput in saturated seconds: below saturation every configuration serves just what is offered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from infra.metrics.aliases import family
from infra.metrics.increases import NoReading, Target, target_of, target_text
from infra.metrics.reader import Selector, duration
from infra.metrics.sums import guarded
from infra.metrics.window import MetricsWindow
from infra.readings import Reading

CHUNK_S = 1800.0
"""Raw samples are fetched in pieces of this length, so that a day of a fleet fits in memory."""

MOST_INTERVALS = 5
"""Longest stretch that can be saturated, in scrape intervals of its replica: a busy engine may miss four scrapes in a
row. What the queue did in a longer gap nobody saw, whatever it holds at both ends (case MS6)."""

MOST_STRETCH_S = 300.0
"""The same as a time, for a replica that was scraped too seldom to know its interval: Prometheus itself takes a series
for gone that was not scraped for five minutes."""

Samples = dict[float, float]


def saturated_throughput(
    window: MetricsWindow,
    *,
    waiting: float,
    min_saturated_s: float,
    accelerators_per_target: float = 1.0,
) -> Reading:
    """Generated tokens per saturated second and accelerator.

    A stretch between two scrapes of a replica is saturated when at least `waiting` requests were queued at
    both of its ends and it is no scrape gap (`MOST_INTERVALS`). Raw scrapes are used, not a resampled range: a counter
    that is scraped every 15 s moves in jumps, and a 1 s grid would credit each jump to the wrong second. `samples` is
    the saturated replica-seconds.

    Args:
        waiting: queued requests from which a replica counts as saturated.
        min_saturated_s: fewest saturated replica-seconds; below it the reading is unknown.
    """

    def take() -> Reading:
        source = (
            f"generation_tokens in stretches with waiting >= {waiting:g}"
            f"{window.selector.braces()} over [{window.start_s:.3f}, {window.end_s:.3f}]"
        )
        targets: set[Target] = set()
        last: dict[Target, tuple[float, float, float]] = {}
        lengths: dict[Target, list[float]] = {}
        full: dict[Target, list[tuple[float, float]]] = {}
        at_s = window.start_s
        while at_s < window.end_s:
            to_s = min(at_s + CHUNK_S, window.end_s)
            generated = _samples(window, "generation_tokens", at_s, to_s)
            queued = _samples(window, "waiting", at_s, to_s)
            targets |= set(generated)
            for target, points in generated.items():
                queue = queued.get(target, {})
                for t in sorted(set(points) & set(queue)):
                    before = last.get(target)
                    last[target] = (t, points[t], queue[t])
                    if before is None or t <= before[0]:
                        continue
                    if points[t] < before[1]:
                        raise NoReading(f"restart in window: {target_text(target)} counts less at {t:.0f}", source)
                    lengths.setdefault(target, []).append(t - before[0])
                    if before[2] >= waiting and queue[t] >= waiting:
                        full.setdefault(target, []).append((t - before[0], points[t] - before[1]))
            at_s = to_s
        if not targets:
            raise NoReading(
                f"metric unavailable: no target of {window.selector.braces()} exports generation_tokens",
                source,
            )
        if not last:
            raise NoReading("generation_tokens and waiting were never scraped together", source)
        longest = {target: _longest_s(lengths[target]) for target in full}
        seen = [(s, made) for target, found in full.items() for s, made in found if s <= longest[target]]
        seconds, tokens = math.fsum(s for s, _ in seen), math.fsum(made for _, made in seen)
        if seconds < min_saturated_s or seconds == 0:
            raise NoReading(f"not saturated: {seconds:g} saturated seconds, {min_saturated_s:g} are needed", source)
        return Reading.of(tokens / seconds / accelerators_per_target, "tok/s", source=source, samples=seconds)

    return guarded("tok/s", take)


def _longest_s(lengths_s: list[float]) -> float:
    """Longest stretch of a replica that is no scrape gap. The usual stretch is its scrape interval."""
    return min(MOST_STRETCH_S, MOST_INTERVALS * statistics.median_low(lengths_s))


def _samples(window: MetricsWindow, canonical: str, start_s: float, end_s: float) -> Mapping[Target, Samples]:
    """Raw samples per target, summed over a target's engines, under the first name that it exports."""
    found: dict[Target, Samples] = {}
    for name in family(canonical).names:
        query = f"{name}{Selector(target=window.selector.target).braces()}[{duration(end_s - start_s)}]"
        fresh: dict[Target, Samples] = {}
        for series in window.reader.instant(query, end_s):
            target = target_of(series)
            if target in found:
                continue
            points = fresh.setdefault(target, {})
            for t, v in series.samples:
                points[t] = points.get(t, 0.0) + v
        found.update(fresh)
    return found
