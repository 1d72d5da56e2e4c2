"""Stage 4's rules on one trial as decision tables: does it pass, what became of it."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.engine.outcomes import OutcomeKind
from infra.readings import Reading
from tasks.sandbox.rules import (
    classify,
    judge_single,
    judge_trial,
)
from tasks.shared.limits import judge_guard, judge_primary
from tasks.shared.outcomes import judgement
from tasks.shared.records import GuardMetric, Outcome, OutcomeClass, PrimaryMetric
from tests.rules.trial_records import (
    NOISE,
    PRODUCTION,
    comparison,
    comparisons,
    correctness,
)

F, N, I, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741
GUARDS = ["p99_latency", "ttft_p99", "tpot_p99", "error_rate", "coverage", "oom_count", "peak_memory"]


def marked(value, mark="few_samples"):
    return Reading.of(value, "ms", mark=mark, cause="p99 of 48 observations")


def test_C2_throughput_up_22_with_P99_up_340_is_a_failure():
    judged = judge_trial(comparisons(throughput_per_gpu=122, p99_latency=4400), PRODUCTION)
    assert judged.outcome is F
    (breach,) = [r for r in judged.reasons if r.outcome is F and r.rule == "p99_latency"]
    assert (breach.observed, breach.limit, breach.unit) == (pytest.approx(340), 5, "%")
    assert "4,400 ms" in breach.text
    assert "1,000 ms" in breach.text


@pytest.mark.parametrize(
    ("expected", "changed"),
    [
        (P, {"throughput_per_gpu": 122}),
        (P, {"throughput_per_gpu": 117}),
        (I, {"throughput_per_gpu": 115}),  # a point at the target, an interval around it
        (F, {"throughput_per_gpu": 112}),
        (F, {"throughput_per_gpu": 100}),
        (F, {"throughput_per_gpu": 80}),
        (I, {"throughput_per_gpu": 122, "p99_latency": 1050}),
        (F, {"throughput_per_gpu": 122, "p99_latency": 1070}),
        (P, {"throughput_per_gpu": 122, "p99_latency": 500}),
        (F, {"throughput_per_gpu": 122, "ttft_p99": 230}),
        (F, {"throughput_per_gpu": 122, "tpot_p99": 23}),
        (P, {"throughput_per_gpu": 122, "error_rate": 0.01}),
        (F, {"throughput_per_gpu": 122, "error_rate": 0.02}),
        (F, {"throughput_per_gpu": 122, "coverage": 99.9}),
        (F, {"throughput_per_gpu": 122, "oom_count": 1}),
        (F, {"throughput_per_gpu": 122, "peak_memory": 1.2e9}),
        (
            P,
            {"throughput_per_gpu": 112, "cost_per_million_tokens": 5.0},
        ),  # the other primary reaches its target
        (N, {"throughput_per_gpu": 122, "p99_latency": None}),
        (I, {"throughput_per_gpu": 122, "p99_latency": marked(900)}),
        (F, {"throughput_per_gpu": 122, "p99_latency": None, "error_rate": 5}),
        (N, {"throughput_per_gpu": None, "cost_per_million_tokens": None}),
    ],
)
def test_C2_needs_a_target_and_every_guard(expected, changed):
    assert judge_trial(comparisons(**changed), PRODUCTION).outcome is expected


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("value", ["absent", None])
def test_C2_missing_guard_data_is_never_a_pass(name, value):
    given_ = (
        comparisons(throughput_per_gpu=150, without=(name,))
        if value == "absent"
        else comparisons(throughput_per_gpu=150, **{name: None})
    )
    assert judge_trial(given_, PRODUCTION).outcome is N
    assert judge_single(given_, PRODUCTION).outcome is N


def test_C2_an_optional_guard_without_data_is_shown_and_decides_nothing():
    guards = tuple(g.model_copy(update={"required": g.name != "peak_memory"}) for g in PRODUCTION.guards)
    criteria = PRODUCTION.model_copy(update={"guards": guards})
    judged = judge_trial(comparisons(throughput_per_gpu=122, without=("peak_memory",)), criteria)
    assert judged.outcome is P
    assert [r.outcome for r in judged.reasons if r.rule == "peak_memory"] == [N]


def test_C2_nothing_measured_is_no_data():
    assert judge_trial((), PRODUCTION).outcome is N


WIDE = (0.1, -0.05, -0.05)
"""Three pairs whose interval is about +- 40 % wide."""


@pytest.mark.parametrize(
    ("expected", "p99", "noise"),
    [
        (P, 1030, NOISE),
        (I, 1049, NOISE),  # the interval straddles the limit
        (F, 1070, NOISE),
        (I, 1000, WIDE),
        (I, 1250, WIDE),
        (F, 2500, WIDE),
        (P, 500, WIDE),
    ],
)
def test_C2_a_guard_holds_or_fails_with_its_whole_interval(expected, p99, noise):
    rest = [c for c in comparisons(throughput_per_gpu=122) if c.metric != "p99_latency"]
    judged = judge_trial([*rest, comparison("p99_latency", 1000, p99, noise=noise)], PRODUCTION)
    assert judged.outcome is expected
    (said,) = [r for r in judged.reasons if r.rule == "p99_latency"]
    assert "3 pairs, duet" in said.text
    assert "limit of 5 % more" in said.text


@pytest.mark.parametrize(
    ("expected", "gain", "noise", "n"),
    [
        (P, 20, NOISE, 3),
        (P, 300, WIDE, 3),
        (I, 20, WIDE, 3),
        (I, 16, WIDE, 8),
        (F, 5, NOISE, 3),
        (I, 20, NOISE, 2),  # never from fewer than three pairs
    ],
)
def test_B4_a_target_is_reached_by_the_whole_interval_or_not_at_all(expected, gain, noise, n):
    rest = [c for c in comparisons() if c.metric not in {"throughput_per_gpu", "cost_per_million_tokens"}]
    found = comparison("throughput_per_gpu", 100, 100 + gain, noise=noise, n=n)
    criteria = PRODUCTION.model_copy(update={"primary": PRODUCTION.primary[:1]})
    judged = judge_trial([*rest, found], criteria)
    assert judged.outcome is expected


@pytest.mark.parametrize(("expected", "before", "after"), [(I, 0, 0), (I, 0, 20), (I, 1e-16, 1e-15)])
def test_OB1_a_latency_of_zero_makes_no_ratio_and_no_pass(expected, before, after):
    rest = [c for c in comparisons(throughput_per_gpu=122) if c.metric != "ttft_p99"]
    assert judge_trial([*rest, comparison("ttft_p99", before, after)], PRODUCTION).outcome is expected


def test_OB1_a_floor_that_is_no_number_proves_nothing():
    metric = PrimaryMetric(name="throughput_per_gpu", direction="higher", target_pct=5)
    one, two = Reading.of(100, "tok/s"), Reading.of(110, "tok/s")
    assert judge_primary(metric, one, two, floor_pct=math.nan).outcome is Outcome.INCONCLUSIVE
    guard = GuardMetric(name="p99_latency", max_increase_pct=5)
    assert judge_guard(guard, one, one, floor_pct=math.nan).outcome is Outcome.INCONCLUSIVE


def test_OB1_a_difference_that_overflows_is_no_data():
    guard = GuardMetric(name="p99_latency", max_increase_pct=5)
    judged = judge_guard(guard, Reading.of(-1e308, "ms"), Reading.of(1e308, "ms"), floor_pct=0.0)
    assert judged.outcome is Outcome.NO_DATA


def test_OB1_error_rate_from_zero_to_two_per_cent_is_a_violation():
    assert judge_trial(comparisons(throughput_per_gpu=150, error_rate=2.0), PRODUCTION).outcome is F


def test_OB1_a_baseline_of_zero_throughput_gives_no_gain():
    given_ = [c for c in comparisons() if c.metric not in {"throughput_per_gpu", "cost_per_million_tokens"}]
    judged = judge_trial([*given_, comparison("throughput_per_gpu", 0, 100)], PRODUCTION)
    assert judged.outcome is N


@pytest.mark.parametrize("mark", ["below_first_bound", "in_overflow", "few_samples"])
@pytest.mark.parametrize("value", [1.0, 1000.0, 9000.0])
def test_MS4_a_marked_quantile_neither_passes_nor_fails_a_guard(mark, value):
    judged = judge_trial(comparisons(throughput_per_gpu=122, p99_latency=marked(value, mark)), PRODUCTION)
    assert judged.outcome is I


values = st.sampled_from([None, 0.0, 1.0, 50.0, 99.0, 100.0, 116.0, 1000.0, 1e9])


@given(st.fixed_dictionaries(dict.fromkeys(["throughput_per_gpu", *GUARDS], values)))
def test_missing_data_never_passes_whatever_the_rest_says(drawn):
    given_ = comparisons(**drawn)
    if any(drawn[name] is None for name in GUARDS):
        assert judge_trial(given_, PRODUCTION).outcome is not P
        assert judge_single(given_, PRODUCTION).outcome is not P


@given(
    st.fixed_dictionaries(dict.fromkeys(["throughput_per_gpu", *GUARDS], values)),
    st.floats(0, 50),
    st.randoms(),
)
def test_more_errors_never_make_a_trial_pass_and_order_does_not_matter(drawn, more, random):
    before = judge_trial(comparisons(**drawn), PRODUCTION).outcome
    worse = comparisons(**{**drawn, "error_rate": (drawn["error_rate"] or 0) + more})
    if drawn["error_rate"] is not None and before is not P:
        assert judge_trial(worse, PRODUCTION).outcome is not P
    shuffled = list(comparisons(**drawn))
    random.shuffle(shuffled)
    assert judge_trial(shuffled, PRODUCTION).outcome is before


@pytest.mark.parametrize(
    ("expected", "changed"),
    [
        (P, {"throughput_per_gpu": 108}),  # beats the smallest gain; the target is for the combination
        (F, {"throughput_per_gpu": 101}),  # no effect
        (F, {"throughput_per_gpu": 90}),
        (F, {"throughput_per_gpu": 108, "p99_latency": 1100}),
        (I, {"throughput_per_gpu": 106}),  # the interval holds the smallest gain
        (I, {"throughput_per_gpu": 108, "p99_latency": marked(1000)}),
    ],
)
def test_C2_a_single_change_beats_the_smallest_gain_and_holds_every_guard(expected, changed):
    assert judge_single(comparisons(**changed), PRODUCTION).outcome is expected


def test_V8_an_undecided_change_says_how_many_pairs_it_would_take():
    said = judge_single(comparisons(throughput_per_gpu=112, noise=WIDE, n=5), PRODUCTION)
    assert said.outcome is I
    assert any("5 pairs, duet: unstable (about" in r.text and "pairs would decide it" in r.text for r in said.reasons)


@pytest.mark.parametrize("kind", get_args(OutcomeKind))
def test_EN6_every_ending_of_an_engine_has_a_class_that_cannot_be_compared(kind):
    given_ = comparisons(throughput_per_gpu=400)
    assert classify(engine_outcome=kind, comparisons=given_, criteria=PRODUCTION) in {
        OutcomeClass.INVALID_CONFIGURATION,
        OutcomeClass.INFEASIBLE,
        OutcomeClass.NOT_RUN,
    }


@pytest.mark.parametrize(
    ("expected", "engine"),
    [
        ("invalid configuration", "invalid_configuration"),
        ("infeasible", "oom_start"),
        ("infeasible", "oom_load"),
        ("infeasible", "host_kill"),
        ("infeasible", "engine_dead"),
        ("infeasible", "other"),
        ("not run", "not_started"),
        ("not run", "port_taken"),
        ("not run", "start_timeout"),
        ("not run", ""),
    ],
)
def test_EN6_a_failed_engine_is_never_measured_whatever_numbers_it_left(expected, engine):
    assert (
        classify(engine_outcome=engine, comparisons=comparisons(throughput_per_gpu=400), criteria=PRODUCTION)
        == expected
    )


@pytest.mark.parametrize(
    ("expected", "changed", "options"),
    [
        ("effective", {"throughput_per_gpu": 108}, {}),
        ("effective", {"throughput_per_gpu": 120}, {"kind": "combination"}),
        ("no effect", {"throughput_per_gpu": 108}, {"kind": "combination"}),  # C2: below its target
        ("no effect", {"throughput_per_gpu": 108}, {"kind": "held_out"}),
        ("no effect", {"throughput_per_gpu": 101}, {}),
        ("side effect", {"throughput_per_gpu": 122, "p99_latency": 4400}, {}),
        ("regression", {"throughput_per_gpu": 80}, {}),
        ("regression", {"throughput_per_gpu": 100, "error_rate": 5}, {}),
        ("wrong output", {"throughput_per_gpu": 122}, {"correctness": correctness(F)}),
        ("effective", {"throughput_per_gpu": 122}, {"correctness": correctness(I)}),
        ("unstable", {"throughput_per_gpu": 122, "noise": WIDE}, {}),
        ("unstable", {"throughput_per_gpu": 67, "noise": WIDE}, {}),  # no regression from a point
        ("unstable", {"throughput_per_gpu": 300, "n": 2}, {}),
        ("regression", {"throughput_per_gpu": 40, "noise": WIDE}, {}),
        ("no effect", {"throughput_per_gpu": 101, "without": ("p99_latency",)}, {}),  # losers are not measured further
        ("unverified", {"throughput_per_gpu": 122, "without": ("p99_latency",)}, {}),
        ("unstable", {"throughput_per_gpu": 122, "p99_latency": marked(1000)}, {}),
        ("unverified", {"throughput_per_gpu": 122}, {"shapes_match": False}),
        ("unverified", {"throughput_per_gpu": 122, "p99_latency": None}, {}),
        ("unverified", {"throughput_per_gpu": None, "cost_per_million_tokens": None}, {}),
    ],
)
def test_V8_classes(expected, changed, options):
    assert (
        classify(engine_outcome="measured", comparisons=comparisons(**changed), criteria=PRODUCTION, **options)
        == expected
    )


def test_V8_no_comparison_is_not_run():
    assert classify(engine_outcome="measured", comparisons=(), criteria=PRODUCTION) is OutcomeClass.NOT_RUN


@given(st.fixed_dictionaries(dict.fromkeys(["throughput_per_gpu", *GUARDS], values)))
def test_reasons_add_up_to_their_outcome(drawn):
    given_ = comparisons(**drawn)
    for said in (judge_trial(given_, PRODUCTION), judge_single(given_, PRODUCTION)):
        assert judgement(said.reasons).outcome is said.outcome


def test_C2_a_missed_target_beside_a_reached_one_is_told_and_decides_nothing():
    said = judge_trial(comparisons(throughput_per_gpu=118), PRODUCTION)  # cost falls by 15 %, not by 20
    assert said.outcome is P
    assert "cost_per_million_tokens" not in {r.rule for r in said.reasons}
    assert "target -20 %" in said.reasons[0].text
