"""From spans to comparisons: which span gives which number, and which sides may be compared."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.readings import Reading
from tasks.sandbox.rules import classify, comparable_cache, compare_runs, judge_trial
from tasks.shared.records import Outcome, OutcomeClass
from tests.rules.trial_records import PRODUCTION, comparisons, pairs, run

F, N, I, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def marked(value, mark="few_samples"):
    return Reading.of(value, "ms", mark=mark, cause="p99 of 48 observations")


def by_name(runs, criteria=PRODUCTION):
    return {c.metric: c for c in compare_runs(runs, criteria, "duet")}


def four(pair, ab, ba, metric="throughput_per_gpu", workload="saturating"):
    """One pair of (baseline, candidate) in each order."""
    return [
        run(side, workload, pair, order, **{metric: value})
        for order, values in (("AB", ab), ("BA", ba))
        for side, value in zip(("baseline", "candidate"), values, strict=True)
    ]


def test_V11_throughput_comes_from_saturated_spans_and_latency_from_recorded_ones():
    runs = [r for pair in range(3) for r in four(pair, (100, 125), (100, 125))]
    runs += [r for pair in range(3) for r in four(pair, (1000, 900), (1000, 900), "p99_latency", "recorded")]
    found = by_name(runs)
    assert found["throughput_per_gpu"].change_pct == pytest.approx(25)
    assert found["p99_latency"].change_pct == pytest.approx(-10)
    assert (found["p99_latency"].pairs, found["p99_latency"].design) == (3, "duet")
    assert "throughput_per_gpu" in found
    assert not found["error_rate"].paired


def test_V3_a_slot_that_is_twice_as_fast_cancels_in_a_pair():
    # the first slot serves 200, the second 100; the candidate is 10 % better on either
    runs = [r for pair in range(3) for r in four(pair, (200, 110), (100, 220))]
    found = by_name(runs)["throughput_per_gpu"]
    assert found.change_pct == pytest.approx(10)
    assert found.low_pct == pytest.approx(10)
    assert found.high_pct == pytest.approx(10)


def test_V3_unrest_that_hits_both_sides_cancels_and_voids_nothing():
    speeds = (1.0, 0.3, 0.6, 1.4)
    runs = [r for i, s in enumerate(speeds) for r in four(i, (100 * s, 130 * s), (90 * s, 117 * s))]
    assert by_name(runs)["throughput_per_gpu"].low_pct == pytest.approx(30)


def test_a_pair_whose_order_is_missing_or_void_gives_no_ratio():
    runs = [r for pair in range(3) for r in four(pair, (100, 125), (100, 125))]
    assert by_name(runs[:-1])["throughput_per_gpu"].pairs == 2
    void = [*runs[:-1], runs[-1].model_copy(update={"valid": False, "invalid_reasons": ("late",)})]
    assert by_name(void)["throughput_per_gpu"].pairs == 2
    assert by_name(void)["throughput_per_gpu"].low_pct is None


def test_C1_cost_follows_from_price_and_throughput():
    found = by_name(pairs(candidate={"throughput_per_gpu": 125}))["cost_per_million_tokens"]
    assert found.baseline.value == pytest.approx(2.5 / (100 * 3600) * 1e6)
    assert found.change_pct == pytest.approx(-20)
    assert found.log_ratios == pytest.approx([-math.log(1.25)] * 3)


def test_OB2_the_worst_span_counts_for_errors_and_coverage_void_ones_included():
    runs = list(pairs())
    runs.append(
        run(
            "candidate",
            "recorded",
            3,
            valid=False,
            reasons=("3 of 10 requests failed",),
            error_rate=30.0,
            coverage=70.0,
            throughput_per_gpu=400,
        )
    )
    found = by_name(runs)
    assert found["error_rate"].candidate.value == 30.0
    assert found["coverage"].candidate.value == 70.0
    assert found["throughput_per_gpu"].candidate.value == 100.0
    assert judge_trial(tuple(found.values()), PRODUCTION).outcome is F


def test_OB2_a_configuration_that_refuses_work_loses_although_it_is_faster():
    refusing = {"throughput_per_gpu": 180, "p99_latency": 300, "error_rate": 30.0, "coverage": 70.0}
    judged = judge_trial(compare_runs(pairs(candidate=refusing), PRODUCTION), PRODUCTION)
    assert {r.rule for r in judged.reasons if r.outcome is F} >= {"error_rate", "coverage"}


def test_rates_given_as_ratios_are_compared_in_per_cent_points():
    ratio = {
        "error_rate": Reading.of(0.0005, "ratio"),
        "coverage": Reading.of(1.0, "ratio"),
        "prefix_hit_rate": Reading.of(0.4, "ratio"),
    }
    found = by_name(pairs(candidate=ratio))
    assert found["error_rate"].change_abs == pytest.approx(0.05)
    assert found["error_rate"].candidate.unit == "%"
    assert judge_trial(tuple(found.values()), PRODUCTION).outcome is F  # 0.05 points, 0.01 allowed


def test_a_rate_without_a_unit_is_unknown_and_not_guessed():
    found = by_name(pairs(candidate={"error_rate": Reading.of(0.01, "")}))
    assert "no unit" in found["error_rate"].candidate.cause


def test_a_metric_that_one_valid_span_lacks_is_unknown():
    runs = [*pairs(2), run("baseline", "recorded", 2), run("candidate", "recorded", 2, without=("p99_latency",))]
    found = by_name(runs)["p99_latency"]
    assert found.candidate.status == "unknown"
    assert "recorded span AB of pair 3 has no p99_latency" in found.candidate.cause


def test_MS4_one_marked_span_marks_the_median():
    runs = [*pairs(2), run("baseline", "recorded", 2), run("candidate", "recorded", 2, p99_latency=marked(900))]
    assert by_name(runs)["p99_latency"].candidate.mark == "few_samples"


def test_no_valid_span_is_unknown():
    found = by_name([r for r in pairs() if not (r.side == "candidate" and r.workload == "saturating")])
    assert found["throughput_per_gpu"].candidate.status == "unknown"


@given(st.permutations(list(pairs(2, candidate={"throughput_per_gpu": 120}))))
def test_order_of_spans_does_not_matter(runs):
    assert compare_runs(runs, PRODUCTION) == compare_runs(pairs(2, candidate={"throughput_per_gpu": 120}), PRODUCTION)


@pytest.mark.parametrize(
    ("expected", "changes", "rate"),
    [
        (P, {"max_num_seqs": 16}, 40),
        (P, {"dtype": "float32"}, 41.5),
        (I, {"dtype": "float32"}, 95),
        (P, {"max_num_seqs": 16}, 48),
        (I, {"max_num_seqs": 16}, 95),
        (P, {"enable_prefix_caching": False}, 0),
        (P, {"block_size": 32, "dtype": "x"}, 20),
        (I, {}, 60),
        (N, {"dtype": "float32"}, None),
    ],
)
def test_LG5_hit_rates_that_differ_for_another_reason_than_the_change(expected, changes, rate):
    judged = comparable_cache(pairs(candidate={"prefix_hit_rate": rate}), changes)
    assert judged.outcome is expected


def test_LG5_spans_count_by_what_they_looked_up():
    few, many = Reading.of(100.0, "%", samples=10), Reading.of(40.0, "%", samples=990)
    runs = [run("candidate", pair=0, prefix_hit_rate=few), run("candidate", pair=1, prefix_hit_rate=many)]
    assert comparable_cache([*runs, run("baseline")], {}).outcome is P


def test_LG5_incomparable_sides_are_unverified():
    cache = comparable_cache(pairs(candidate={"prefix_hit_rate": 95}), {"dtype": "float32"})
    assert (
        classify(
            engine_outcome="measured",
            comparisons=comparisons(throughput_per_gpu=200),
            criteria=PRODUCTION,
            cache=cache,
        )
        is OutcomeClass.UNVERIFIED
    )
