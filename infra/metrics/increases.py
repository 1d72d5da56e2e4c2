"""Increase of counters over a window that may have restarts, gaps and newcomers in it.

The choice made here: a restart inside the window makes the window not comparable (the engine started cold),
so the reading is unknown with the cause "restart in window"; nothing is added up across it, and no negative
number can come out. A window that is hardly scraped is "insufficient data". A counter that did not exist at
the start counts from zero only when its target is known to have been up then.

Counts are exact differences of samples, never PromQL's `increase`, which extrapolates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from pydantic import BaseModel, ConfigDict

from infra.metrics.reader import MetricsReader, Selector, Series, duration

Target = tuple[str, str]
MIN_SCRAPES = 3
MAX_EDGE_GAP = 0.25
"""Largest part of the window that may be uncovered at either end."""


class NoReading(Exception):
    """A window that gives no number; becomes an unknown reading."""

    def __init__(self, cause: str, source: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.source = source


class Increase(BaseModel):
    """Increase of one series over the window."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: Mapping[str, str]
    amount: float


class Increases(BaseModel):
    """All increases of a counter, per series; empty when the targets exist and nothing was counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    series: tuple[Increase, ...]
    targets: int
    scrapes: float
    source: str

    @property
    def total(self) -> float:
        """Sum over all series."""
        return math.fsum(entry.amount for entry in self.series)


def target_of(series: Series) -> Target:
    """The scrape target that a series came from."""
    return series.labels.get("job", ""), series.labels.get("instance", "")


def target_text(target: Target) -> str:
    """The target for a person."""
    return "/".join(part for part in target if part) or "the target"


def _key(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in series.labels.items() if k != "__name__"))


def _by_target(series: Sequence[Series], pick: Callable[[float, float], float]) -> dict[Target, float]:
    found: dict[Target, float] = {}
    for entry in series:
        target = target_of(entry)
        found[target] = pick(found[target], entry.value) if target in found else entry.value
    return found


class _Probe(BaseModel):
    """What the window looks like from the scrapes of one series name."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    counts: Mapping[Target, float]
    starts_s: Mapping[Target, float]
    ends_s: Mapping[Target, float]
    resets: Mapping[Target, float]
    process_changes: Mapping[Target, float]


def _probe(reader: MetricsReader, query: str, selector: Selector, start_s: float, end_s: float) -> _Probe:
    counts = _by_target(reader.instant(f"count_over_time({query}[{duration(end_s - start_s)}])", end_s), max)
    starts = _by_target(reader.instant(f"timestamp({query})", start_s), max)
    ends = _by_target(reader.instant(f"timestamp({query})", end_s), max)
    # Reaches back to the sample that the difference starts from, so that a restart just before is seen too.
    reach = duration(end_s - min([start_s, *starts.values()]) + 0.001)
    resets = _by_target(reader.instant(f"resets({query}[{reach}])", end_s), max)
    # Optional evidence: shows a restart even where the new counter has already passed the old one.
    process = f"process_start_time_seconds{selector.on_target().braces()}"
    changes = _by_target(reader.instant(f"changes({process}[{reach}])", end_s), max)
    return _Probe(counts=counts, starts_s=starts, ends_s=ends, resets=resets, process_changes=changes)


def _fault(
    probe: _Probe,
    target: Target,
    window: tuple[float, float],
    min_scrapes: int,
    up_at_start: Callable[[], bool],
) -> str:
    """Why the window of one target gives no number; empty when it does."""
    start_s, end_s = window
    name = target_text(target)
    edge_s = MAX_EDGE_GAP * (end_s - start_s)
    scrapes = probe.counts.get(target, 0)
    first_s, last_s = probe.starts_s.get(target), probe.ends_s.get(target)
    fault = ""
    if probe.resets.get(target, 0) > 0 or probe.process_changes.get(target, 0) > 0:
        fault = f"restart in window: {name} started anew between {start_s:.0f} and {end_s:.0f}"
    elif last_s is None:
        fault = f"{name} was gone before the end of the window"
    elif scrapes < min_scrapes:
        fault = f"insufficient data: {scrapes:g} scrapes of {name} in {end_s - start_s:g} s, {min_scrapes} are needed"
    elif end_s - last_s > edge_s:
        fault = f"insufficient data: {name} was last scraped {end_s - last_s:.0f} s before the end"
    elif first_s is not None and start_s - first_s > edge_s:
        fault = f"insufficient data: {name} was last scraped {start_s - first_s:.0f} s before the start"
    elif first_s is None and not up_at_start():
        fault = f"{name} started inside the window, or was not scraped at its start"
    return fault


def counter_increases(
    reader: MetricsReader,
    names: Sequence[str],
    selector: Selector,
    start_s: float,
    end_s: float,
    *,
    probe: Callable[[str], str] = lambda name: name,
    probe_selector: Selector | None = None,
    min_scrapes: int = MIN_SCRAPES,
) -> Increases:
    """Increase of a counter over [start_s, end_s] (epoch seconds), per series.

    Args:
        names: its names, preferred first; each target is read under the first one that it exports.
        probe: the series that shows whether the target was scraped and restarted, by counter name: the
            `_count` of a histogram, or a counter that exists from the start for one that appears with its
            first event.
        probe_selector: matchers of the probe where they differ (fewer labels).

    Raises:
        NoReading: unavailable, restarted, hardly scraped, gone or new.
        MetricReadFailed: Prometheus did not answer.
    """
    probe_selector = probe_selector or selector
    source = f"increase of {'|'.join(names)}{selector.braces()} over [{start_s:.3f}, {end_s:.3f}]"
    if end_s <= start_s:
        raise NoReading("the window is empty", source)
    entries: list[Increase] = []
    done: dict[Target, str] = {}
    scrapes = math.inf
    window = (start_s, end_s)

    @cache
    def up_at_start() -> Mapping[Target, float]:
        return _by_target(reader.instant(f"up{selector.on_target().braces()}", start_s), max)

    for name in names:
        query = f"{probe(name)}{probe_selector.braces()}"
        seen = _probe(reader, query, selector, start_s, end_s)
        targets = {*seen.counts, *seen.starts_s, *seen.ends_s} - set(done)
        for target in sorted(targets):
            fault = _fault(seen, target, window, min_scrapes, partial(_was_up, up_at_start, target))
            if fault:
                raise NoReading(fault, f"{source} (seen by {query})")
            scrapes = min(scrapes, seen.counts[target])
            done[target] = name
        if targets:
            entries += _differences(reader, f"{name}{selector.braces()}", targets, window, source)
    if not done:
        raise NoReading(
            f"metric unavailable: no target of {selector.on_target().braces()} exports "
            f"{' or '.join(probe(n) for n in names)}",
            source,
        )
    used = "|".join(dict.fromkeys(done.values()))
    return Increases(
        series=tuple(entries),
        targets=len(done),
        scrapes=scrapes,
        source=f"increase of {used}{selector.braces()} over [{start_s:.3f}, {end_s:.3f}]",
    )


def _was_up(up: Callable[[], Mapping[Target, float]], target: Target) -> bool:
    return up().get(target) == 1


def _differences(
    reader: MetricsReader, query: str, targets: set[Target], window: tuple[float, float], source: str
) -> list[Increase]:
    start_s, end_s = window
    before = {_key(s): s.value for s in reader.instant(query, start_s) if target_of(s) in targets}
    after = {_key(s): s for s in reader.instant(query, end_s) if target_of(s) in targets}
    if lost := set(before) - set(after):
        raise NoReading(f"a series vanished inside the window: {dict(next(iter(lost)))}", source)
    found = []
    for key, series in after.items():
        amount = series.value - before.get(key, 0.0)
        if not math.isfinite(amount):
            raise NoReading(f"the counter is {series.value} at the end of the window", source)
        if amount < 0:
            raise NoReading(f"restart in window: {target_text(target_of(series))} counts less at its end", source)
        found.append(Increase(labels=dict(key), amount=amount))
    return found
