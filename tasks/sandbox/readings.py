"""Turns a measured run into readings by metric name. Pure."""

from __future__ import annotations

from infra.bench.measure import MeasuredRun
from infra.replay.records import Percentiles, ReplaySummary
from tasks.sandbox.comparison import THROUGHPUT_OF
from tasks.sandbox.records import Conditions, RunReadings
from tasks.shared.records import Reading

MIN_FOR_P99 = 5
"""Fewer ok requests than this give no P99 at all; the interval says how little a small number means."""


def _latency(values: Percentiles, which: str, n: int, source: str) -> Reading:
    value = getattr(values, which)
    if n < MIN_FOR_P99:
        return Reading.unknown(f"only {n} requests were served, {MIN_FOR_P99} are needed", unit="ms", source=source)
    return Reading.of(value, "ms", source=source, samples=n)


def throughput(summary: ReplaySummary, accelerators: int) -> Reading:
    """Output tokens per second and accelerator at the saturating load: of the whole closed loop, from its start to the
    end of its last request (spec V11; docs/decisions/0006 says why no part of it is left out)."""
    source = "replay, closed loop"
    slots = summary.concurrency
    if slots is None or summary.requests <= slots or summary.max_in_flight < slots:
        return Reading.unknown(
            f"the load was not saturating: {summary.requests} requests, at most {summary.max_in_flight} at once, "
            f"for {slots or 'no'} slots",
            unit="tok/s",
            source=source,
        )
    made = summary.output_tokens_per_s
    each = None if made is None else made / accelerators
    return Reading.of(each, "tok/s", source=source, samples=summary.ok, cause="no request was served")


def disturbances(run: MeasuredRun, *, max_foreign_cpu_pct: float, max_steal_pct: float) -> tuple[str, ...]:
    """Why a run is void (spec V3): a client that could not keep up, foreign load, a core taken away or slowed."""
    reasons = list(run.result.summary.invalid_reasons)
    c = run.conditions
    if c.foreign_cpu_pct is not None and c.foreign_cpu_pct > max_foreign_cpu_pct:
        reasons.append(f"foreign load took {c.foreign_cpu_pct:.1f} % of the machine, limit {max_foreign_cpu_pct:.0f} %")
    if c.steal_pct is not None and c.steal_pct > max_steal_pct:
        reasons.append(f"the hypervisor took {c.steal_pct:.1f} % of a core, limit {max_steal_pct:.0f} %")
    if c.throttled:
        reasons.append(f"the CPU slowed itself {c.throttled} times for its heat")
    return tuple(reasons)


def run_readings(
    run: MeasuredRun,
    *,
    requests_key: str,
    cores: tuple[int, ...],
    accelerator: str,
    accelerators: int,
    max_foreign_cpu_pct: float,
    max_steal_pct: float,
    peak_memory_bytes: float | None,
) -> RunReadings:
    """One run by metric name; foreign load and steal beyond the limits make it void (spec V3)."""
    s = run.result.summary
    source = f"replay, {run.workload} load"
    reasons = disturbances(run, max_foreign_cpu_pct=max_foreign_cpu_pct, max_steal_pct=max_steal_pct)
    c = run.conditions
    served_pct = 100.0 * s.ok / s.requests if s.requests else None
    metrics = {
        "error_rate": Reading.of(100.0 * s.error_rate, "%", source=source, samples=s.requests),
        "coverage": Reading.of(served_pct, "%", source=source, samples=s.requests),
        "p50_latency": _latency(s.e2e_ms, "p50", s.ok, source),
        "p90_latency": _latency(s.e2e_ms, "p90", s.ok, source),
        "p99_latency": _latency(s.e2e_ms, "p99", s.ok, source),
        "ttft_p50": _latency(s.ttft_ms, "p50", s.ok, source),
        "ttft_p99": _latency(s.ttft_ms, "p99", s.ok, source),
        "tpot_p50": _latency(s.tpot_ms, "p50", s.ok, source),
        "tpot_p99": _latency(s.tpot_ms, "p99", s.ok, source),
        "prefix_hit_rate": Reading.of(
            None if run.prefix_hit_rate is None else 100.0 * run.prefix_hit_rate,
            "%",
            source="engine's counters",
            cause="the engine exports no such counter",
        ),
        "preemptions": Reading.of(
            run.preemptions, "count", source="engine's counters", cause="the engine exports no such counter"
        ),
        "peak_concurrency": Reading.of(float(s.max_in_flight), "requests", source=source),
        "oom_count": Reading.of(0.0, "count", source="the engine outlived the run"),
        "peak_memory": Reading.of(
            peak_memory_bytes,
            "bytes",
            source="resident memory of the engine's processes",
            cause="the engine's memory could not be read",
        ),
    }
    if run.workload in THROUGHPUT_OF:
        metrics[THROUGHPUT_OF[run.workload]] = throughput(s, accelerators)
    return RunReadings(
        workload=run.workload,
        repeat=run.repeat,
        side=run.side,
        metrics=metrics,
        valid=not reasons,
        invalid_reasons=reasons,
        requests_key=requests_key,
        conditions=Conditions(
            steal_pct=c.steal_pct,
            foreign_cpu_pct=c.foreign_cpu_pct,
            cpu_mhz=c.cpu_mhz,
            throttled=c.throttled,
            cores=cores,
            accelerator=accelerator,
        ),
    )
