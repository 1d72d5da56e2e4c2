"""Throughput in saturated seconds: below saturation every configuration serves just what is offered."""

from __future__ import annotations

from collections.abc import Mapping

from infra.metrics.aliases import family
from infra.metrics.increases import NoReading, Target, target_of, target_text
from infra.metrics.reader import Selector, duration
from infra.metrics.sums import guarded
from infra.metrics.window import MetricsWindow
from infra.readings import Reading

CHUNK_S = 1800.0
"""Raw samples are fetched in pieces of this length, so that a day of a fleet fits in memory."""

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
    both of its ends. Raw scrapes are used, not a resampled range: a counter that is scraped every 15 s moves
    in jumps, and a 1 s grid would credit each jump to the wrong second. `samples` is the saturated
    replica-seconds.

    Args:
        waiting: queued requests from which a replica counts as saturated.
        min_saturated_s: fewest saturated replica-seconds; below it the reading is unknown.
    """

    def take() -> Reading:
        tokens = seconds = 0.0
        source = (
            f"generation_tokens in stretches with waiting >= {waiting:g}"
            f"{window.selector.braces()} over [{window.start_s:.3f}, {window.end_s:.3f}]"
        )
        targets: set[Target] = set()
        last: dict[Target, tuple[float, float, float]] = {}
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
                    if before[2] >= waiting and queue[t] >= waiting:
                        tokens += points[t] - before[1]
                        seconds += t - before[0]
            at_s = to_s
        if not targets:
            raise NoReading(
                f"metric unavailable: no target of {window.selector.braces()} exports generation_tokens",
                source,
            )
        if not last:
            raise NoReading("generation_tokens and waiting were never scraped together", source)
        if seconds < min_saturated_s or seconds == 0:
            raise NoReading(f"not saturated: {seconds:g} saturated seconds, {min_saturated_s:g} are needed", source)
        return Reading.of(tokens / seconds / accelerators_per_target, "tok/s", source=source, samples=seconds)

    return guarded("tok/s", take)


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
