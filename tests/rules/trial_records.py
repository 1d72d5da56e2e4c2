"""Runs, comparisons and trials for tests of rules; numbers are given, nothing is measured."""

from __future__ import annotations

from pathlib import Path

from infra.readings import Reading
from tasks.sandbox.records import (
    CorrectnessReport,
    MetricComparison,
    RunReadings,
    SandboxVerdict,
    TrialResult,
)
from tasks.shared.criteria import criteria_hash, parse_criteria
from tasks.shared.records import Judgement, Outcome, OutcomeClass, Target
from tasks.shared.statistics import change
from tests.rules.serving_configs import serving_config

DOCS = Path(__file__).parents[2] / "docs"
PRODUCTION = parse_criteria((DOCS / "perf-baseline.md").read_text(), "perf-baseline.md")
DEMO = parse_criteria((DOCS / "perf-baseline-demo.md").read_text(), "perf-baseline-demo.md")
TARGET = Target(model="m", pool="p")
BASELINE = serving_config(max_num_seqs=8)

UNITS = {
    "throughput_per_gpu": "tok/s",
    "cost_per_million_tokens": "per million tokens",
    "error_rate": "%",
    "coverage": "%",
    "oom_count": "count",
    "peak_memory": "bytes",
    "prefix_hit_rate": "%",
}
USUAL = {
    "throughput_per_gpu": 100.0,
    "p50_latency": 400.0,
    "p90_latency": 800.0,
    "p99_latency": 1000.0,
    "ttft_p99": 200.0,
    "tpot_p99": 20.0,
    "error_rate": 0.0,
    "coverage": 100.0,
    "oom_count": 0.0,
    "peak_memory": 1e9,
    "prefix_hit_rate": 40.0,
}
FLOOR = 2.0


def reading(name, value):
    """A reading of the metric in its unit; a Reading is passed on, None is unknown."""
    if isinstance(value, Reading):
        return value
    return Reading.of(value, UNITS.get(name, "ms"))


def run(side="candidate", workload="saturating", repeat=0, *, valid=True, reasons=(), without=(), **metrics):
    """One run with the usual readings, some replaced or left out."""
    values = {**USUAL, **metrics}
    return RunReadings(
        workload=workload,
        repeat=repeat,
        side=side,
        valid=valid,
        invalid_reasons=reasons,
        metrics={n: reading(n, v) for n, v in values.items() if n not in without},
    )


def pairs(n=3, baseline=None, candidate=None, **run_options):
    """Interleaved runs of both sides on both workloads."""
    return tuple(
        run(side, workload, repeat, **run_options, **(values or {}))
        for repeat in range(n)
        for workload in ("recorded", "saturating")
        for side, values in (("baseline", baseline), ("candidate", candidate))
    )


def comparison(name, before, after, *, floor=FLOOR, low=None, high=None):
    """One comparison with its change computed."""
    one, two = reading(name, before), reading(name, after)
    relative, absolute = change(one, two)
    return MetricComparison(
        metric=name,
        baseline=one,
        candidate=two,
        change_pct=relative,
        change_abs=absolute,
        low_pct=low,
        high_pct=high,
        floor_pct=floor,
    )


def comparisons(*, floor=FLOOR, without=(), low=None, high=None, **changed):
    """All usual comparisons; `p99_latency=1050` changes the candidate, cost follows throughput."""
    before = {**USUAL, "cost_per_million_tokens": 25 / 3600 * 1e3}
    after = {**before, **changed}
    throughput = after["throughput_per_gpu"]
    if "cost_per_million_tokens" not in changed and isinstance(throughput, float | int) and throughput > 0:
        after["cost_per_million_tokens"] = before["cost_per_million_tokens"] * 100 / throughput
    return tuple(
        comparison(
            n,
            before[n],
            after[n],
            floor=floor,
            low=low if n == "throughput_per_gpu" else None,
            high=high if n == "throughput_per_gpu" else None,
        )
        for n in before
        if n not in without
    )


def correctness(outcome=Outcome.PASS):
    """A report on outputs."""
    return CorrectnessReport(judgement=Judgement(outcome=outcome), compared=20, equal=20, baseline_self_equal=20)


def trial(
    changes,
    throughput=100.0,
    *,
    kind="single",
    outcome_class=OutcomeClass.EFFECTIVE,
    held_out=False,
    correct=Outcome.PASS,
    objective=None,
    sample="search",
    **changed,
):
    """One measured trial."""
    config = serving_config(**{"max_num_seqs": 8, **changes})
    return TrialResult(
        trial_id=f"{kind}-" + "-".join(sorted(changes)),
        campaign="c",
        target=TARGET,
        hypothesis_ids=tuple(changes),
        changes=changes,
        config=config,
        config_hash=config.config_hash(),
        baseline_hash=BASELINE.config_hash(),
        kind="held_out" if held_out else kind,
        outcome_class=outcome_class,
        comparisons=comparisons(throughput_per_gpu=throughput, **changed),
        judgement=Judgement(outcome=Outcome.PASS),
        correctness=None if correct is None else correctness(correct),
        sample_hash=sample,
        held_out=held_out,
        objective=objective,
    )


def verdict(*, held=None, outcome=Outcome.PASS, pinned=True, criteria=PRODUCTION, hashed=None):
    """A sandbox verdict over one winner."""
    winner = trial({"max_num_seqs": 16}, 130.0)
    if held is None:
        held = trial({"max_num_seqs": 16}, 128.0, held_out=True, sample="unseen")
    return SandboxVerdict(
        campaign="c",
        target=TARGET,
        criteria_hash=hashed or criteria_hash(criteria),
        pinned=pinned,
        judgement=Judgement(outcome=outcome),
        winner=winner,
        held_out=held,
        trials=(winner,),
    )
