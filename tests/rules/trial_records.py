"""Runs, comparisons and trials for tests of rules; numbers are given, nothing is measured."""

from __future__ import annotations

import math
from pathlib import Path

from infra.readings import Reading
from tasks.sandbox.comparison import PAIRED
from tasks.sandbox.records import (
    CorrectnessReport,
    MetricComparison,
    RunReadings,
    SandboxVerdict,
    TrialResult,
)
from tasks.shared.criteria import criteria_hash, parse_criteria
from tasks.shared.paired import estimate
from tasks.shared.records import Judgement, Outcome, OutcomeClass, Target
from tasks.shared.statistics import NEAR_ZERO, change
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
NOISE = (0.002, -0.001, -0.001)
"""What the pairs of a quiet machine differ by; their interval is about 1 % wide on either side."""


def reading(name, value):
    """A reading of the metric in its unit; a Reading is passed on, None is unknown."""
    if isinstance(value, Reading):
        return value
    return Reading.of(value, UNITS.get(name, "ms"))


def run(side="candidate", workload="saturating", pair=0, order="AB", *, valid=True, reasons=(), without=(), **metrics):
    """One span with the usual readings, some replaced or left out."""
    values = {**USUAL, **metrics}
    return RunReadings(
        workload=workload,
        pair=pair,
        order=order,
        side=side,
        valid=valid,
        invalid_reasons=reasons,
        metrics={n: reading(n, v) for n, v in values.items() if n not in without},
    )


def pairs(n=3, baseline=None, candidate=None, **run_options):
    """Pairs of both sides on both workloads."""
    return tuple(
        run(side, workload, pair, order, **run_options, **(values or {}))
        for workload in ("saturating", "recorded")
        for pair in range(n)
        for order in ("AB", "BA")
        for side, values in (("baseline", baseline), ("candidate", candidate))
    )


def ratios(change, noise=NOISE, n=3):
    """Pairs of a true ratio of 1 + change (0.2 is +20 %)."""
    return tuple(math.log1p(change) + noise[i % len(noise)] for i in range(n))


def comparison(name, before, after, *, noise=NOISE, n=3):
    """One comparison with its change computed; a metric that is measured in pairs has `n` of them around it."""
    one, two = reading(name, before), reading(name, after)
    relative, absolute = change(one, two)
    found = ()
    if name in PAIRED and relative is not None and -100 < relative < math.inf and min(one.value, two.value) > NEAR_ZERO:
        found = ratios(relative / 100, noise, n)
    said = estimate(found)
    return MetricComparison(
        metric=name,
        baseline=one,
        candidate=two,
        change_pct=relative,
        change_abs=absolute,
        low_pct=None if said is None else said.low_pct,
        high_pct=None if said is None else said.high_pct,
        paired=name in PAIRED,
        log_ratios=found,
        design="duet" if name in PAIRED else "",
    )


def comparisons(*, noise=NOISE, n=3, without=(), **changed):
    """All usual comparisons; `p99_latency=1050` changes the candidate, cost follows throughput."""
    before = {**USUAL, "cost_per_million_tokens": 25 / 3600 * 1e3}
    after = {**before, **changed}
    throughput = after["throughput_per_gpu"]
    if "cost_per_million_tokens" not in changed and isinstance(throughput, float | int) and throughput > 0:
        after["cost_per_million_tokens"] = before["cost_per_million_tokens"] * 100 / throughput
    return tuple(comparison(m, before[m], after[m], noise=noise, n=n) for m in before if m not in without)


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
    noise=NOISE,
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
        comparisons=comparisons(throughput_per_gpu=throughput, noise=noise, **changed),
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
