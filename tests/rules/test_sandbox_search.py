"""Which combinations are measured, and when a pair ends early."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from infra.bench.conditions import RunConditions
from infra.bench.measure import MeasuredRun
from infra.replay.records import REQUEST_COLUMNS, ReplayResult, ReplaySummary
from tasks.sandbox.readings import run_readings
from tasks.sandbox.search import combinations, decided_early
from tasks.shared.records import OutcomeClass
from tests.rules.trial_records import trial


def measured(side, rate=10.0, *, refused=(), workload="saturating", foreign=0.0, steal=0.0, invalid=(), n=12):
    rows = [
        {
            "request_id": f"r{i}",
            "planned_s": float(i),
            "sent_s": float(i),
            "first_token_s": i + 0.1,
            "last_token_s": i + 0.5,
            "end_s": i + 0.5,
            "status": "http_error" if i in refused else "ok",
            "http_status": 400 if i in refused else 200,
            "prompt_tokens": 10,
            "output_tokens": 8,
            "tokens_estimated": False,
            "finish_reason": "length",
            "text_sha256": "",
            "error": "",
        }
        for i in range(n)
    ]
    frame = pl.DataFrame(rows, schema=REQUEST_COLUMNS)
    none = {"p50": 500.0, "p90": 500.0, "p99": 500.0, "max": 500.0}
    summary = ReplaySummary.model_validate(
        {
            "requests": n,
            "ok": n - len(refused),
            "failed": len(refused),
            "error_rate": len(refused) / n,
            "valid": not invalid,
            "invalid_reasons": invalid,
            "duration_s": 12.0,
            "output_tokens_per_s": rate,
            "prompt_tokens": 100,
            "output_tokens": 96,
            "tokens_estimated": 0,
            "dispatch_delay_ms": none,
            "ttft_ms": none,
            "tpot_ms": none,
            "itl_ms": none,
            "e2e_ms": none,
            "chunk_gap_ms": none,
            "failures": {},
            "cached_tokens": None,
            "max_in_flight": min(n, 4),
            "mode": "closed" if workload == "saturating" else "open",
            "concurrency": 4 if workload == "saturating" else None,
            "time_scale": 1.0,
            "warmup_sent": 0,
            "warmup_failed": 0,
            "started_epoch_s": 0.0,
            "ended_epoch_s": 12.0,
            "sample_hash": "s",
            "replay_hash": "r",
        }
    )
    return MeasuredRun(
        side=side,
        workload=workload,
        repeat=0,
        result=ReplayResult(frame, summary),
        requests_path=Path("x"),
        prefix_hit_rate=0.0,
        preemptions=0.0,
        conditions=RunConditions(steal_pct=steal, foreign_cpu_pct=foreign, duration_s=12.0),
    )


@pytest.mark.parametrize(
    ("early", "why", "candidate"),
    [
        (False, "better", {"rate": 14.0}),
        (False, "better by less than the floor", {"rate": 10.2}),
        (True, "no better", {"rate": 10.0}),
        (True, "worse", {"rate": 9.3}),
        (True, "faster survivors of refused requests", {"rate": 20.0, "refused": (3, 7)}),
    ],
)
def test_only_a_loser_ends_early(early, why, candidate):
    assert decided_early([measured("baseline"), measured("candidate", **candidate)], floor_pct=4.0) is early, why


def test_OB2_requests_that_both_sides_refuse_do_not_end_a_pair():
    runs = [measured("baseline", refused=(3,)), measured("candidate", rate=12.0, refused=(3,))]
    assert decided_early(runs, floor_pct=4.0) is False


def test_without_a_known_floor_nothing_ends_early():
    assert decided_early([measured("baseline"), measured("candidate", rate=1.0)], floor_pct=None) is False


@pytest.mark.parametrize(
    ("early", "primaries"),
    [
        (True, ("throughput_per_gpu",)),
        (True, ("cost_per_million_tokens", "throughput_per_gpu")),
        (False, ("p99_latency",)),
        (False, ("throughput_per_gpu", "ttft_p99")),
    ],
)
def test_C2_no_gain_in_throughput_decides_only_what_follows_from_it(early, primaries):
    runs = [measured("baseline"), measured("candidate", rate=9.0)]
    assert decided_early(runs, floor_pct=4.0, primaries=primaries) is early
    refusing = [measured("baseline"), measured("candidate", refused=(3,))]
    assert decided_early(refusing, floor_pct=4.0, primaries=primaries) is True


def members(*throughputs):
    return [trial({f"knob_{i}": i + 1}, t) for i, t in enumerate(throughputs)]


@pytest.mark.parametrize(
    ("sizes", "throughputs", "most"),
    [
        ([], (), 2),
        ([], (120.0,), 2),
        ([2], (120.0, 130.0), 2),
        ([], (120.0, 130.0), 0),
        ([3, 2, 2, 2], (110.0, 120.0, 130.0), 4),
        ([2], (110.0, 120.0, 130.0), 2),  # the three could not be proven member by member: the best two are
    ],
)
def test_V7_combinations_are_those_whose_members_can_be_proven(sizes, throughputs, most):
    assert [len(c) for c in combinations(members(*throughputs), most)] == sizes


def test_V7_a_member_that_is_not_effective_joins_no_combination():
    singles = [*members(120.0, 130.0), trial({"max_model_len": 192}, 150.0, outcome_class=OutcomeClass.SIDE_EFFECT)]
    (pair,) = combinations(singles, 2)
    assert all("max_model_len" not in m.changes for m in pair)


def readings_of(run, accelerators=1):
    return run_readings(
        run,
        requests_key="k",
        cores=(1,),
        accelerator="cpu",
        accelerators=accelerators,
        max_foreign_cpu_pct=15.0,
        max_steal_pct=5.0,
        peak_memory_bytes=1e9,
    )


def test_V3_foreign_load_and_steal_void_a_run_and_say_how_much():
    assert readings_of(measured("candidate")).valid
    busy = readings_of(measured("candidate", foreign=40.0))
    assert not busy.valid
    assert "40.0 %" in busy.invalid_reasons[0]
    assert not readings_of(measured("candidate", steal=9.0)).valid
    hot = measured("candidate")
    hot = hot.model_copy(update={"conditions": hot.conditions.model_copy(update={"throttled": 2, "cpu_mhz": 900.0})})
    found = readings_of(hot)
    assert not found.valid
    assert "slowed itself 2 times" in found.invalid_reasons[0]
    assert (found.conditions.throttled, found.conditions.cpu_mhz) == (2, 900.0)


def test_LG1_a_client_bound_replay_is_no_result():
    found = readings_of(measured("candidate", invalid=("client-bound: dispatch delay p99 80 ms, limit 50 ms",)))
    assert not found.valid
    assert "client-bound" in found.invalid_reasons[0]


def test_OB2_coverage_counts_what_was_refused():
    found = readings_of(measured("candidate", refused=(1, 2, 3)))
    assert found.metrics["coverage"].value == pytest.approx(75.0)
    assert found.metrics["error_rate"].value == pytest.approx(25.0)


def test_V11_throughput_is_read_at_the_saturating_load_only():
    assert readings_of(measured("candidate")).metrics["throughput_per_gpu"].value == 10.0
    assert "throughput_per_gpu" not in readings_of(measured("candidate", workload="recorded")).metrics


def test_B2_throughput_is_per_accelerator():
    assert readings_of(measured("candidate"), accelerators=8).metrics["throughput_per_gpu"].value == 10.0 / 8


def test_V11_a_load_that_does_not_fill_its_slots_gives_no_throughput():
    found = readings_of(measured("candidate", n=4)).metrics["throughput_per_gpu"]
    assert found.value is None
    assert "4 requests, at most 4 at once, for 4 slots" in found.cause


def test_a_p99_of_four_requests_is_unknown():
    found = readings_of(measured("candidate", n=4))
    assert found.metrics["p99_latency"].value is None
    assert "only 4" in found.metrics["p99_latency"].cause
