"""Two engines measured side by side until the question is answered or the budget ends; each pair is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.bench.conditions import ConditionsWatch, RunConditions
from infra.bench.duet import SIDES, Duet, RecordedSpan, Span
from infra.bench.engines import Bench, Sides
from infra.bench.measure import Side, cold_cache
from infra.bench.workload import WorkloadPlan
from infra.settings.sandbox import SandboxSettings
from infra.store import ObjectStore
from tasks.sandbox.comparison import THROUGHPUT_OF, compare_runs
from tasks.sandbox.readings import closed_readings, recorded_readings
from tasks.sandbox.records import Conditions, RunReadings
from tasks.shared.records import Criteria

Answered = Callable[[list[RunReadings]], bool]


class Measurement:
    """One trial's spans. `readings` holds all of them, in order; they stay when a side fails half-way."""

    def __init__(
        self,
        bench: Bench,
        sides: Sides,
        sample_path: Path,
        store: ObjectStore,
        settings: SandboxSettings,
        criteria: Criteria,
        say: Callable[[str], None],
    ) -> None:
        self._bench, self._sides, self._path, self._store = bench, sides, sample_path, store
        self._settings, self._criteria, self._say = settings, criteria, say
        self._duet = Duet(
            bench, sides.baseline, sides.candidate, sample_path.parent / "spans", client_cores=settings.client_cores
        )
        self.readings: list[RunReadings] = []
        self.spans_s = 0.0
        """Seconds that went to pairs, warm-up included."""

    def start(self) -> None:
        """Both caches empty, each engine on its slot."""
        for served in (self._sides.baseline, self._sides.candidate):
            cold_cache(served)
        self._bench.place("AB")

    def run(self, plan: WorkloadPlan, most_pairs: int, answered: Answered) -> int:
        """Pairs of one load, `most_pairs` at most; how many were made.

        Raises:
            SideFailed: a side did not answer; it names the side.
        """
        span_s = self._criteria.measuring.span_s
        recorded = plan.workload == "recorded"
        pairs: Iterator[tuple[Span, Span] | tuple[RecordedSpan, RecordedSpan]] = (
            self._duet.recorded(self._path, plan) if recorded else self._duet.closed(self._path, plan, span_s)
        )
        began_s = time.monotonic()
        done = 0
        try:
            for done in range(1, most_pairs + 1):
                watch = ConditionsWatch([self._sides.baseline.pid, self._sides.candidate.pid])
                spans = next(pairs)
                meanwhile = watch.finish()
                for span in spans:
                    self.readings += [self._read(span, side, plan, meanwhile) for side in SIDES]
                each_s = (time.monotonic() - began_s) / done
                left_s = each_s * (most_pairs - done)
                self._say(f"{plan.workload} pair {done}: {self._so_far(plan)}; {left_s:.0f} s left at most")
                if answered(self.readings):
                    break
        finally:
            pairs.close()  # type: ignore[attr-defined]
            self.spans_s += time.monotonic() - began_s
        return done

    def _so_far(self, plan: WorkloadPlan) -> str:
        """The ratio as it narrows: throughput in a closed loop, the median and P99 latency at recorded load."""
        names = ("p50_latency", "p99_latency") if plan.workload == "recorded" else (THROUGHPUT_OF[plan.workload],)
        found = {c.metric: c.estimate for c in compare_runs(self.readings, self._criteria)}
        return ", ".join(f"{n} {e.text()}" if (e := found.get(n)) else f"{n} unknown" for n in names)

    def _read(self, span: Span | RecordedSpan, side: Side, plan: WorkloadPlan, meanwhile: RunConditions) -> RunReadings:
        slots = self._settings.slots
        first = (side == "baseline") == (span.order == "AB")
        conditions = Conditions(
            steal_pct=meanwhile.steal_pct,
            foreign_cpu_pct=meanwhile.foreign_cpu_pct,
            cpu_mhz=meanwhile.cpu_mhz,
            throttled=meanwhile.throttled,
            cores=slots[0] if first else slots[-1],
            accelerator=self._settings.accelerator,
        )
        peak = self._bench.peak_memory(side)
        if isinstance(span, Span):
            return closed_readings(
                span,
                side,
                plan,
                accelerators=self._settings.accelerators,
                conditions=conditions,
                peak_memory_bytes=peak,
            )
        file = span.folder / side / "requests.parquet"
        return recorded_readings(
            span,
            side,
            conditions=conditions,
            peak_memory_bytes=peak,
            requests_key=self._store.put_content("requests", file.read_bytes(), ".parquet"),
        )
