"""Turns spans into readings by metric name. Pure."""

from __future__ import annotations

from infra.bench.duet import RecordedSpan, SideSpan, Span
from infra.bench.measure import Counters, Side
from infra.bench.workload import WorkloadPlan
from infra.replay.records import Percentiles
from tasks.sandbox.comparison import THROUGHPUT_OF
from tasks.sandbox.records import Conditions, RunReadings
from tasks.shared.records import Reading

MIN_FOR_P99 = 5
"""Fewer ok requests than this give no P99 at all; the interval says how little a small number means."""


def closed_readings(
    span: Span,
    side: Side,
    plan: WorkloadPlan,
    *,
    accelerators: int,
    conditions: Conditions,
    peak_memory_bytes: float | None,
) -> RunReadings:
    """One side of a span of a saturated loop: output tokens a second and accelerator by their arrival inside the span
    (spec V11), and what failed. A side that answered nothing is void.

    Args:
        accelerators: of one engine.
        peak_memory_bytes: resident memory of the engine's processes since the last span; None where it is not told.
    """
    found: SideSpan = getattr(span, side)
    source = f"closed loop, {found.seconds:.1f} s"
    void = () if found.tokens or found.failed else (f"the {side} answered nothing in {found.seconds:.1f} s",)
    rate = found.tokens_per_s / accelerators if found.tokens else None
    in_flight = float(plan.options.concurrency or 0) if found.tokens else 0.0
    return RunReadings(
        workload=plan.workload,
        pair=span.pair,
        order=span.order,
        side=side,
        metrics={
            THROUGHPUT_OF[plan.workload]: Reading.of(
                rate, "tok/s", source=source, samples=found.ok, cause="no token came"
            ),
            "peak_concurrency": Reading.of(in_flight, "requests", source=source),
            **_common(found.ok, found.failed, found.counted, peak_memory_bytes, source),
        },
        valid=not void,
        invalid_reasons=void,
        conditions=conditions,
    )


def recorded_readings(
    span: RecordedSpan,
    side: Side,
    *,
    conditions: Conditions,
    peak_memory_bytes: float | None,
    requests_key: str,
) -> RunReadings:
    """One side of the recorded arrivals: latencies in ms, and what failed. Void is what is wrong with the measurement
    itself: a client that came late, a side without answers (spec V3, case LG1)."""
    summary = (span.baseline if side == "baseline" else span.candidate).summary
    source = "replay at recorded load"
    return RunReadings(
        workload="recorded",
        pair=span.pair,
        order=span.order,
        side=side,
        metrics={
            "p50_latency": _latency(summary.e2e_ms, "p50", summary.ok, source),
            "p90_latency": _latency(summary.e2e_ms, "p90", summary.ok, source),
            "p99_latency": _latency(summary.e2e_ms, "p99", summary.ok, source),
            "ttft_p50": _latency(summary.ttft_ms, "p50", summary.ok, source),
            "ttft_p99": _latency(summary.ttft_ms, "p99", summary.ok, source),
            "tpot_p50": _latency(summary.tpot_ms, "p50", summary.ok, source),
            "tpot_p99": _latency(summary.tpot_ms, "p99", summary.ok, source),
            "peak_concurrency": Reading.of(float(summary.max_in_flight), "requests", source=source),
            **_common(summary.ok, summary.failed, span.counted[side], peak_memory_bytes, source),
        },
        valid=summary.valid,
        invalid_reasons=summary.invalid_reasons,
        requests_key=requests_key,
        conditions=conditions,
    )


def _latency(values: Percentiles, which: str, n: int, source: str) -> Reading:
    if n < MIN_FOR_P99:
        return Reading.unknown(f"only {n} requests were served, {MIN_FOR_P99} are needed", unit="ms", source=source)
    return Reading.of(getattr(values, which), "ms", source=source, samples=n)


def _common(
    ok: int, failed: int, counted: Counters, peak_memory_bytes: float | None, source: str
) -> dict[str, Reading]:
    ended, no_counter = ok + failed, "the engine exports no such counter"
    share = None if counted.prefix_queries is None or counted.prefix_hits is None else counted.prefix_hits
    if share is not None:
        share = 100.0 * share / counted.prefix_queries if counted.prefix_queries else 0.0
    return {
        "error_rate": Reading.of(
            100.0 * failed / ended if ended else None, "%", source=source, samples=ended, cause="no request ended"
        ),
        "coverage": Reading.of(
            100.0 * ok / ended if ended else None, "%", source=source, samples=ended, cause="no request ended"
        ),
        "prefix_hit_rate": Reading.of(
            share, "%", source="engine's counters", samples=counted.prefix_queries, cause=no_counter
        ),
        "preemptions": Reading.of(counted.preemptions, "count", source="engine's counters", cause=no_counter),
        "oom_count": Reading.of(0.0, "count", source="the engine outlived the span"),
        "peak_memory": Reading.of(
            peak_memory_bytes,
            "bytes",
            source="resident memory of the engine's processes",
            cause="the engine's memory could not be read",
        ),
    }
