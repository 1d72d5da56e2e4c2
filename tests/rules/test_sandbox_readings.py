"""Spans as readings: throughput by arrival, latencies at recorded load, and what is void."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from infra.bench.duet import RecordedSpan, SideSpan, Span
from infra.bench.measure import Counters
from infra.bench.workload import WorkloadPlan
from infra.replay.records import REQUEST_COLUMNS, ReplayOptions, ReplayResult, ReplaySummary
from tasks.sandbox.readings import closed_readings, recorded_readings
from tasks.sandbox.records import Conditions

PLAN = WorkloadPlan(workload="saturating", options=ReplayOptions(mode="closed", concurrency=4))
COUNTED = Counters(prefix_queries=200.0, prefix_hits=50.0, preemptions=0.0)


def closed(tokens=100, ok=12, failed=0, accelerators=1, counted=COUNTED, workload="saturating"):
    side = SideSpan(seconds=10.0, tokens=tokens, ok=ok, failed=failed, counted=counted)
    span = Span(pair=2, order="BA", baseline=side, candidate=side)
    plan = PLAN.model_copy(update={"workload": workload})
    return closed_readings(
        span, "candidate", plan, accelerators=accelerators, conditions=Conditions(steal_pct=40.0), peak_memory_bytes=1e9
    )


def replayed(ok=12, failed=0, invalid=()):
    none = {"p50": 500.0, "p90": 500.0, "p99": 500.0, "max": 500.0}
    n = ok + failed
    summary = ReplaySummary.model_validate(
        {
            "requests": n, "ok": ok, "failed": failed, "error_rate": failed / n, "valid": not invalid,
            "invalid_reasons": invalid, "duration_s": 12.0, "output_tokens_per_s": 8.0, "prompt_tokens": 100,
            "output_tokens": 96, "tokens_estimated": 0, "dispatch_delay_ms": none, "ttft_ms": none, "tpot_ms": none,
            "itl_ms": none, "e2e_ms": none, "chunk_gap_ms": none, "failures": {}, "cached_tokens": None,
            "max_in_flight": 3, "mode": "open", "concurrency": None, "time_scale": 1.0, "warmup_sent": 0,
            "warmup_failed": 0, "started_epoch_s": 0.0, "ended_epoch_s": 12.0, "sample_hash": "s", "replay_hash": "r",
        }
    )  # fmt: skip
    result = ReplayResult(pl.DataFrame(schema=REQUEST_COLUMNS), summary)
    span = RecordedSpan(
        pair=0,
        order="AB",
        baseline=result,
        candidate=result,
        counted={"baseline": COUNTED, "candidate": COUNTED},
        folder=Path("x"),
    )
    return recorded_readings(span, "candidate", conditions=Conditions(), peak_memory_bytes=1e9, requests_key="k")


def test_V11_throughput_is_the_tokens_that_came_in_the_span_by_accelerator():
    assert closed().metrics["throughput_per_gpu"].value == 10.0
    assert closed(accelerators=8).metrics["throughput_per_gpu"].value == 10.0 / 8
    assert closed(workload="long_prompts").metrics["throughput_long_prompts"].value == 10.0
    assert "throughput_per_gpu" not in replayed().metrics


def test_V3_what_the_machine_did_is_recorded_and_voids_nothing():
    found = closed()
    assert found.valid
    assert (found.conditions.steal_pct, found.pair, found.order) == (40.0, 2, "BA")


def test_V3_a_side_without_answers_is_void():
    found = closed(tokens=0, ok=0)
    assert not found.valid
    assert "answered nothing in 10.0 s" in found.invalid_reasons[0]
    assert found.metrics["throughput_per_gpu"].value is None


def test_OB2_a_side_that_refuses_everything_is_its_result_and_not_void():
    found = closed(tokens=0, ok=0, failed=30)
    assert found.valid
    assert found.metrics["coverage"].value == 0.0
    assert found.metrics["error_rate"].value == 100.0


def test_LG1_a_client_that_came_late_is_void():
    found = replayed(invalid=("client-bound: dispatch delay p99 80 ms, limit 50 ms",))
    assert not found.valid
    assert "client-bound" in found.invalid_reasons[0]


def test_OB2_coverage_counts_what_was_refused():
    for found in (closed(ok=9, failed=3), replayed(ok=9, failed=3)):
        assert found.metrics["coverage"].value == pytest.approx(75.0)
        assert found.metrics["error_rate"].value == pytest.approx(25.0)


def test_a_p99_of_four_requests_is_unknown():
    found = replayed(ok=4)
    assert found.metrics["p99_latency"].value is None
    assert "only 4" in found.metrics["p99_latency"].cause


def test_LG5_the_hit_rate_is_of_the_span_and_counts_what_was_looked_up():
    found = closed().metrics["prefix_hit_rate"]
    assert (found.value, found.samples) == (25.0, 200)
    later = Counters(prefix_queries=500.0, prefix_hits=90.0, preemptions=2.0)
    assert later.since(COUNTED) == Counters(prefix_queries=300.0, prefix_hits=40.0, preemptions=2.0)
    assert closed(counted=Counters()).metrics["prefix_hit_rate"].value is None
    assert closed(counted=Counters(prefix_queries=0.0, prefix_hits=0.0)).metrics["prefix_hit_rate"].value == 0.0
