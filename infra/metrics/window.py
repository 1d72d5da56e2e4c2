"""Readings of the engine over one window: each is a value, a confirmed zero, or unknown with its cause."""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from infra.metrics.aliases import family
from infra.metrics.histograms import Buckets, nearest_bound, quantile, slower_than
from infra.metrics.increases import (
    MIN_SCRAPES,
    Increases,
    NoReading,
    Target,
    counter_increases,
    target_of,
    target_text,
)
from infra.metrics.reader import MetricReadFailed, MetricsReader, Selector, duration
from infra.metrics.sums import finite, guarded, summed_buckets
from infra.readings import Reading


class SlowCount(BaseModel):
    """Requests slower than an existing histogram bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slow: Reading
    total: Reading
    bound_ms: float | None
    """The bound that was used; None where there is none or nothing could be read."""


class MetricsWindow:
    """Readings over [start_s, end_s] (epoch seconds) of the targets of one selector.

    Metrics are named canonically (`infra.metrics.aliases`); latencies are given in ms. No method raises for
    what Prometheus says or fails to say: that is an unknown reading.

    Args:
        min_scrapes: fewest scrapes of each target that make the window a measurement.
    """

    def __init__(
        self,
        reader: MetricsReader,
        selector: Selector,
        start_s: float,
        end_s: float,
        *,
        min_scrapes: int = MIN_SCRAPES,
    ) -> None:
        self.reader = reader
        self.selector = selector
        self.start_s = start_s
        self.end_s = end_s
        self.min_scrapes = min_scrapes
        self._buckets: dict[str, tuple[Buckets, str]] = {}

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    def slices(self, parts: int) -> tuple[MetricsWindow, ...]:
        """The window in equal parts."""
        width = self.seconds / parts
        return tuple(
            MetricsWindow(
                self.reader,
                self.selector,
                self.start_s + i * width,
                self.start_s + (i + 1) * width,
                min_scrapes=self.min_scrapes,
            )
            for i in range(parts)
        )

    def earlier(self, seconds: float) -> MetricsWindow:
        """The same window so many seconds before (a week: 604,800)."""
        return MetricsWindow(
            self.reader,
            self.selector,
            self.start_s - seconds,
            self.end_s - seconds,
            min_scrapes=self.min_scrapes,
        )

    # Counters

    def increases(self, canonical: str, **labels: str) -> Increases:
        """Per-series increases of a counter, or of a histogram's `_count`.

        Raises:
            NoReading, MetricReadFailed: as `counter_increases`.
        """
        entry = family(canonical)
        names = [f"{name}_count" if entry.kind == "histogram" else name for name in entry.names]
        return counter_increases(
            self.reader,
            names,
            self.selector.with_metric(**labels),
            self.start_s,
            self.end_s,
            probe_selector=self.selector,
            min_scrapes=self.min_scrapes,
        )

    def increase(self, canonical: str, **labels: str) -> Reading:
        """Increase of a counter; zero is a confirmed zero."""
        unit = family(canonical).unit

        def take() -> Reading:
            found = self.increases(canonical, **labels)
            return Reading.of(found.total, unit, source=found.source, samples=found.scrapes)

        return guarded(unit, take)

    def throughput(self, *, accelerators_per_target: float = 1.0) -> Reading:
        """Generated tokens per second of the window, per accelerator of all targets."""

        def take() -> Reading:
            found = self.increases("generation_tokens")
            accelerators = accelerators_per_target * found.targets
            return Reading.of(
                found.total / self.seconds / accelerators, "tok/s", source=found.source, samples=found.scrapes
            )

        return guarded("tok/s", take)

    def finished(self, *reasons: str) -> Reading:
        """Requests that finished for one of the reasons (stop, length, abort, error …); all without one."""

        def take() -> Reading:
            found = self.increases("request_success")
            amount = math.fsum(
                entry.amount for entry in found.series if not reasons or entry.labels.get("finished_reason") in reasons
            )
            source = found.source + (f", finished_reason in {'|'.join(reasons)}" if reasons else "")
            return Reading.of(amount, "requests", source=source, samples=found.scrapes)

        return guarded("requests", take)

    def ratio(self, top: str, bottom: str) -> Reading:
        """Increase of one counter over that of another; unknown where the lower one did not move."""

        def take() -> Reading:
            over, under = self.increases(top), self.increases(bottom)
            source = f"({over.source}) / ({under.source})"
            if under.total == 0:
                return Reading.unknown(f"idle: {bottom} did not move in the window", unit="ratio", source=source)
            return Reading.of(over.total / under.total, "ratio", source=source, samples=under.total)

        return guarded("ratio", take)

    def prefix_hit_rate(self) -> Reading:
        """Share of queried prompt tokens that the prefix cache held."""
        return self.ratio("prefix_cache_hits", "prefix_cache_queries")

    def time_sum_s(self, canonical: str) -> Reading:
        """Sum of a time histogram over the window, in seconds."""

        def take() -> Reading:
            found = counter_increases(
                self.reader,
                [f"{name}_sum" for name in family(canonical).names],
                self.selector,
                self.start_s,
                self.end_s,
                probe=lambda name: f"{name.removesuffix('_sum')}_count",
                min_scrapes=self.min_scrapes,
            )
            return Reading.of(found.total, "s", source=found.source, samples=found.scrapes)

        return guarded("s", take)

    def prefill_time_share(self) -> Reading:
        """Prefill time over prefill and decode time of all requests of the window."""
        prefill, decode = self.time_sum_s("prefill_time"), self.time_sum_s("decode_time")
        for part in (prefill, decode):
            if part.value is None:
                return Reading.unknown(part.cause, unit="ratio", source=part.source)
        whole = (prefill.value or 0) + (decode.value or 0)
        source = f"({prefill.source}) / (prefill + decode)"
        if whole == 0:
            return Reading.unknown("idle: no inference time in the window", unit="ratio", source=source)
        return Reading.of((prefill.value or 0) / whole, "ratio", source=source)

    # Histograms

    def buckets(self, canonical: str) -> tuple[Buckets, str]:
        """Bucket increases of a histogram over all targets (in its own unit), and where they came from.

        Raises:
            NoReading: also when two targets do not have the same bounds, whose sum would mean nothing.
        """
        if canonical in self._buckets:
            return self._buckets[canonical]
        found = counter_increases(
            self.reader,
            [f"{name}_bucket" for name in family(canonical).names],
            self.selector,
            self.start_s,
            self.end_s,
            probe=lambda name: f"{name.removesuffix('_bucket')}_count",
            min_scrapes=self.min_scrapes,
        )
        self._buckets[canonical] = summed_buckets(found), found.source
        return self._buckets[canonical]

    def quantile(self, canonical: str, q: float, *, min_samples: int | None = None) -> Reading:
        """A latency quantile in ms (a length quantile in tokens), with its validity mark."""
        seconds = family(canonical).unit == "s"
        unit = "ms" if seconds else family(canonical).unit

        def take() -> Reading:
            found, source = self.buckets(canonical)
            return quantile(
                found,
                q,
                unit=unit,
                scale=1000.0 if seconds else 1.0,
                min_samples=min_samples,
                source=f"p{q * 100:g} of {source}",
            )

        return guarded(unit, take)

    def slower_than_ms(self, canonical: str, limit_ms: float) -> SlowCount:
        """Requests slower than the existing bound that is nearest to `limit_ms`, and that bound."""
        bound_ms: float | None = None
        total = Reading.unknown("not read", unit="requests")

        def take() -> Reading:
            nonlocal bound_ms, total
            found, source = self.buckets(canonical)
            bound = nearest_bound(found.bounds, limit_ms / 1000)
            if bound is None:
                raise NoReading(f"the histogram has no finite bound near {limit_ms:g} ms", source)
            bound_ms = bound * 1000
            total = Reading.of(found.total, "requests", source=source, samples=found.total)
            return slower_than(found, bound, source=f"above {bound:g} s: {source}")

        slow = guarded("requests", take)
        if slow.value is None:
            total = Reading.unknown(slow.cause, unit="requests", source=slow.source)
        return SlowCount(slow=slow, total=total, bound_ms=bound_ms)

    # Gauges

    def _gauge(self, canonical: str, query: Callable[[str], str]) -> tuple[list[float], str]:
        """One number per series, each target read under the first name that it exports."""
        entry = family(canonical)
        values: list[float] = []
        done: set[Target] = set()
        used: list[str] = []
        for name in entry.names:
            text = query(f"{name}{self.selector.braces()}")
            found = [s for s in self.reader.instant(text, self.end_s) if target_of(s) not in done]
            if not found:
                continue
            used.append(text)
            self._enough_scrapes(f"{name}{self.selector.braces()}", {target_of(s) for s in found})
            done |= {target_of(s) for s in found}
            values += [finite(s, text) for s in found]
        if not values:
            raise NoReading(
                f"metric unavailable: no target of {self.selector.braces()} exports {' or '.join(entry.names)}",
                query(f"{entry.names[0]}{self.selector.braces()}"),
            )
        return values, " and ".join(used)

    def _enough_scrapes(self, query: str, targets: set[Target]) -> None:
        text = f"count_over_time({query}[{duration(self.seconds)}])"
        for series in self.reader.instant(text, self.end_s):
            if target_of(series) in targets and series.value < self.min_scrapes:
                raise NoReading(
                    f"insufficient data: {series.value:g} scrapes of {target_text(target_of(series))} in "
                    f"{self.seconds:g} s, {self.min_scrapes} are needed",
                    text,
                )

    def gauge_avg(self, canonical: str) -> Reading:
        """Mean over time, then over replicas."""

        def take() -> Reading:
            values, source = self._gauge(canonical, lambda s: f"avg_over_time({s}[{duration(self.seconds)}])")
            return Reading.of(
                math.fsum(values) / len(values),
                family(canonical).unit,
                source=f"mean of {source}",
                samples=len(values),
            )

        return guarded(family(canonical).unit, take)

    def gauge_max(self, canonical: str) -> Reading:
        """Largest sample of any replica."""

        def take() -> Reading:
            values, source = self._gauge(canonical, lambda s: f"max_over_time({s}[{duration(self.seconds)}])")
            return Reading.of(max(values), family(canonical).unit, source=f"max of {source}", samples=len(values))

        return guarded(family(canonical).unit, take)

    def share_of_time(self, canonical: str, at_least: float, *, step_s: float = 1.0) -> Reading:
        """Share of the window, 0 to 1, in which a gauge was at least so high (mean over replicas)."""

        def take() -> Reading:
            values, source = self._gauge(
                canonical,
                lambda s: f"avg_over_time(({s} >= bool {at_least:g})[{duration(self.seconds)}:{duration(step_s)}])",
            )
            return Reading.of(math.fsum(values) / len(values), "ratio", source=source, samples=len(values))

        return guarded("ratio", take)

    def up(self) -> Reading:
        """Share of scrapes that the targets answered, 0 to 1; unknown when there is no such target."""
        text = f"avg_over_time(up{self.selector.on_target().braces()}[{duration(self.seconds)}])"

        def take() -> Reading:
            found = self.reader.instant(text, self.end_s)
            if not found:
                raise NoReading(f"no target matches {self.selector.on_target().braces()}", text)
            return Reading.of(min(finite(s, text) for s in found), "ratio", source=text, samples=len(found))

        return guarded("ratio", take)

    def restarts(self) -> Reading:
        """Restarts of the engine processes inside the window, as their own counters show them."""
        names = (*family("generation_tokens").names,)

        def take() -> Reading:
            total, source = 0.0, ""
            for name in names:
                source = f"resets({name}{self.selector.braces()}[{duration(self.seconds)}])"
                per_target: dict[Target, float] = {}
                for series in self.reader.instant(source, self.end_s):
                    target = target_of(series)
                    per_target[target] = max(per_target.get(target, 0.0), finite(series, source))
                if per_target:
                    return Reading.of(math.fsum(per_target.values()), "count", source=source, samples=len(per_target))
            raise NoReading(
                f"metric unavailable: no target of {self.selector.braces()} exports "
                f"{' or '.join(names)} ({total:g} found)",
                source,
            )

        return guarded("count", take)

    def series(self, canonical: str, *, step_s: float = 1.0) -> tuple[tuple[float, float], ...]:
        """(second of the window, sum over targets) for plots; empty when nothing can be read."""
        for name in family(canonical).names:
            try:
                found = self.reader.series(f"sum({name}{self.selector.braces()})", self.start_s, self.end_s, step_s)
            except MetricReadFailed:
                return ()
            if found:
                return tuple((t - self.start_s, v) for t, v in found[0].samples if math.isfinite(v))
        return ()
