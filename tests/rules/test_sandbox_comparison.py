"""From runs to comparisons: which run gives which number, and which runs may be compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.readings import Reading
from tasks.sandbox.rules import (
    classify,
    comparable_cache,
    compare_runs,
    judge_trial,
    unstable,
)
from tasks.shared.records import Outcome, OutcomeClass
from tasks.shared.statistics import ArrivalBlocks
from tests.rules.trial_records import (
    PRODUCTION,
    comparisons,
    pairs,
    run,
)

F, N, I, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741
FLOORS = {"throughput_per_gpu": 2.0, "p99_latency": 3.0, "ttft_p99": 3.0, "tpot_p99": 3.0, "peak_memory": 1.0}


def marked(value, mark="few_samples"):
    return Reading.of(value, "ms", mark=mark, cause="p99 of 48 observations")


def by_name(runs, criteria=PRODUCTION, floors=None, **options):
    return {c.metric: c for c in compare_runs(runs, criteria, FLOORS if floors is None else floors, **options)}


def test_V11_throughput_comes_from_saturating_runs_and_latency_from_recorded_ones():
    runs = [
        run(side, "saturating", i, throughput_per_gpu=t, p99_latency=9999)
        for side, ts in (("baseline", (100, 101, 99)), ("candidate", (130, 120, 125)))
        for i, t in enumerate(ts)
    ]
    runs += [
        run(side, "recorded", i, throughput_per_gpu=7, p99_latency=p)
        for side, ps in (("baseline", (1000, 990, 1010)), ("candidate", (900, 910, 890)))
        for i, p in enumerate(ps)
    ]
    found = by_name(runs)
    assert found["throughput_per_gpu"].change_pct == pytest.approx(25)
    assert found["throughput_per_gpu"].spread_pct == pytest.approx(8)
    assert found["p99_latency"].change_pct == pytest.approx(-10)
    assert found["p99_latency"].floor_pct == 3.0


def test_C1_cost_follows_from_price_and_throughput():
    found = by_name(pairs(candidate={"throughput_per_gpu": 125}))["cost_per_million_tokens"]
    assert found.baseline.value == pytest.approx(2.5 / (100 * 3600) * 1e6)
    assert found.change_pct == pytest.approx(-20)
    assert found.floor_pct == FLOORS["throughput_per_gpu"]


def test_OB2_the_worst_run_counts_for_errors_and_coverage_void_ones_included():
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
    judged = judge_trial(compare_runs(pairs(candidate=refusing), PRODUCTION, FLOORS), PRODUCTION)
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


def test_a_metric_that_one_run_lacks_is_unknown():
    runs = [
        *pairs(2),
        run("baseline", "recorded", 2),
        run("candidate", "recorded", 2, without=("p99_latency",)),
    ]
    found = by_name(runs)["p99_latency"]
    assert found.candidate.status == "unknown"
    assert "recorded run 2 has no p99_latency" in found.candidate.cause
    assert found.change_pct is None


def test_MS4_one_marked_run_marks_the_median():
    runs = [
        *pairs(2),
        run("baseline", "recorded", 2),
        run("candidate", "recorded", 2, p99_latency=marked(900)),
    ]
    assert by_name(runs)["p99_latency"].candidate.mark == "few_samples"


def test_no_valid_run_is_unknown():
    found = by_name([r for r in pairs() if not (r.side == "candidate" and r.workload == "saturating")])
    assert found["throughput_per_gpu"].candidate.status == "unknown"


@given(st.permutations(list(pairs(2, candidate={"throughput_per_gpu": 120}))))
def test_order_of_runs_does_not_matter(runs):
    assert compare_runs(runs, PRODUCTION, FLOORS) == compare_runs(
        pairs(2, candidate={"throughput_per_gpu": 120}), PRODUCTION, FLOORS
    )


def test_intervals_come_from_blocks():
    base = tuple(tuple((10.0 + i + j / 10,) for i in range(8)) for j in range(3))
    cand = tuple(tuple(tuple(v / 1.3 for v in block) for block in repeat) for repeat in base)
    blocks = {
        "throughput_per_gpu": ArrivalBlocks(
            metric="throughput_per_gpu", statistic="rate", baseline=base, candidate=cand
        )
    }
    found = by_name(pairs(candidate={"throughput_per_gpu": 130}), blocks=blocks, resamples=200)
    assert found["throughput_per_gpu"].low_pct == pytest.approx(30)
    assert found["p99_latency"].low_pct is None


def test_V3_throughput_that_spreads_over_the_limit_is_unstable():
    runs = [
        run(side, "saturating", i, throughput_per_gpu=t)
        for side in ("baseline", "candidate")
        for i, t in enumerate((100, 106, 100))
    ]
    assert ["6.0 %" in text for text in unstable(runs, PRODUCTION)] == [True, True]
    assert unstable(pairs(), PRODUCTION) == ()


def test_V3_too_few_valid_runs_are_unstable_and_say_why():
    runs = [r for r in pairs() if not (r.side == "candidate" and r.repeat == 2)]
    runs.append(run("candidate", "saturating", 2, valid=False, reasons=("CPU steal 12 %",)))
    (recorded, saturating) = unstable(runs, PRODUCTION)
    assert "2 valid recorded runs of 3" in recorded
    assert "CPU steal 12 %" in saturating
    assert unstable((), PRODUCTION) != ()


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


def test_LG5_second_run_on_a_warm_cache_is_not_comparable_even_when_the_cache_was_changed():
    runs = [
        run(side, "saturating", i, prefix_hit_rate=r)
        for side in ("baseline", "candidate")
        for i, r in enumerate((40, 98))
    ]
    judged = comparable_cache(runs, {"enable_prefix_caching": True})
    assert judged.outcome is I
    assert "found it warm" in judged.reasons[0].text


def test_LG5_an_incomparable_pair_is_unverified():
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
