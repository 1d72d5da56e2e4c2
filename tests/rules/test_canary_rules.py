"""Stage 5's judgement of one step, and of production after the promotion."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.readings import Reading
from tasks.canary.rules import judge_step, production_verdict
from tasks.shared.intervals import CONFIRMING, alpha_of_look, lower_difference
from tasks.shared.records import Outcome
from tests.rules.arm_readings import UNKNOWN, arm, step, window
from tests.rules.trial_records import PRODUCTION

F, E, N, I, P = Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def judge(canary=None, stable=None, *, criteria=PRODUCTION, **changes):
    return judge_step(window(canary, stable), step(**changes), criteria)


def test_R4_equal_arms_pass():
    assert judge().outcome is P


def test_CA1_no_traffic_is_no_data_and_never_a_pass():
    for empty in (0, UNKNOWN, Reading.of(math.nan, "requests")):
        assert judge(arm(empty, 0, 0)).outcome is N
        assert judge(stable=arm(empty, 0, 0)).outcome is N
    assert "no data" in next(r.text for r in judge(arm(0, 0, 0)).reasons if r.rule == "requests")


@pytest.mark.parametrize(
    ("expected", "canary", "stable", "min_samples"),
    [
        (I, (3, 1), (3000, 6), 20),  # one failure among three says nothing
        (I, (19, 0), (3000, 6), 20),  # and nineteen successes neither
        (P, (20, 0), (3000, 6), 20),
        (I, (20, 1), (3000, 6), 20),  # above the minimum: one failure is an event and not a rate
        (F, (20, 5), (3000, 6), 20),
        (P, (3500, 2), (700_000, 350), 1000),  # R1: a doubled rate cannot be seen at 3,500 requests …
        (F, (3500, 18), (700_000, 350), 1000),  # … a tenfold one can
        (P, (3500, 0), (700_000, 350), 1000),
    ],
)
def test_CA4_errors_are_judged_by_an_interval_and_not_by_a_bare_ratio(expected, canary, stable, min_samples):
    judged = judge(arm(*canary, 0), arm(*stable, 0), stop_on=("error_rate",), min_samples=min_samples)
    assert judged.outcome is expected


@pytest.mark.parametrize("reading", ["errors", "slow"])
def test_MS1_unknown_counts_are_no_data(reading):
    assert judge(arm(**{reading: UNKNOWN})).outcome is N
    assert judge(stable=arm(**{reading: UNKNOWN})).outcome is N


def test_counts_of_different_windows_are_an_error():
    assert judge(arm(2000, 3000, 0)).outcome is E


@pytest.mark.parametrize(
    ("expected", "canary", "stable"),
    [
        (P, 40, 40),  # 1 % is what P99 means
        (F, 200, 40),
        (P, 200, 200),  # both slower than the bound: same window, same slowness (R4)
        (F, 400, 200),
        (P, 0, 40),
    ],
)
def test_R1_P99_is_the_share_of_requests_slower_than_a_bound(expected, canary, stable):
    assert judge(arm(slow=canary), arm(slow=stable), stop_on=("p99_latency",)).outcome is expected


def test_R1_no_bound_near_the_limit_is_no_data():
    assert judge(arm(bound=None), stop_on=("p99_latency",)).outcome is N
    assert judge(arm(bound=900.0), stop_on=("p99_latency",)).outcome is E


@pytest.mark.parametrize("name", ["ttft_p99", "tpot_p99"])
@pytest.mark.parametrize(("expected", "factor"), [(P, 1.0), (P, 1.09), (F, 1.2), (P, 0.5)])
def test_R4_token_latencies_are_compared_over_the_same_window(name, expected, factor):
    usual = {"ttft_p99": 200, "tpot_p99": 20}[name]
    assert judge(arm(**{name: Reading.of(usual * factor, "ms")})).outcome is expected


@pytest.mark.parametrize("mark", ["few_samples", "in_overflow", "below_first_bound"])
@pytest.mark.parametrize("value", [1, 200, 9000])
def test_MS4_a_marked_quantile_cannot_judge(mark, value):
    marked = Reading.of(value, "ms", mark=mark, cause="12 observations")
    assert judge(arm(ttft_p99=marked)).outcome is I
    assert judge(stable=arm(ttft_p99=marked)).outcome is I


@pytest.mark.parametrize(
    ("expected", "load", "slow"),
    [
        (P, 2.0, 20),
        (I, 0.5, 20),
        (F, 0.5, 400),
        (P, 1.7, 20),
        (F, 2.0, 400),
        (I, 4.0, 400),
        (P, 4.0, 20),
        (N, None, 20),
        (F, None, 400),
    ],
)
def test_R6_at_lower_load_worse_is_a_breach_and_better_is_no_information(expected, load, slow):
    carried = UNKNOWN if load is None else load
    assert judge(arm(slow=slow, load=carried), stop_on=("p99_latency",)).outcome is expected


def test_R6_errors_do_not_need_load():
    assert judge(arm(load=0.1), stop_on=("error_rate",)).outcome is P


@pytest.mark.parametrize("stop_on", [("any",), ("error_rate",), ("p99_latency",)])
def test_R1_an_out_of_memory_or_a_dead_engine_ends_every_step(stop_on):
    assert judge(arm(oom_count=Reading.of(1, "count")), stop_on=stop_on).outcome is F
    assert judge(arm(engine_up=Reading.of(0, "engines")), stop_on=stop_on).outcome is F
    assert judge(arm(0, 0, 0, engine_up=Reading.of(0, "engines")), stop_on=stop_on).outcome is F


def test_R1_a_step_judges_the_guards_that_it_names():
    slow = arm(slow=2000, ttft_p99=UNKNOWN, oom_count=UNKNOWN)
    assert judge(slow, stop_on=("error_rate",)).outcome is P
    assert judge(slow, stop_on=("any",)).outcome is F
    assert judge(arm(oom_count=UNKNOWN), stop_on=("oom_count",)).outcome is N
    assert judge(arm(engine_up=UNKNOWN), stop_on=("error_rate",)).outcome is N


def test_a_step_that_judges_nothing_cannot_pass():
    assert judge(stop_on=("coverage",)).outcome is N


def test_R5_at_full_share_stable_as_it_was_stands_in():
    gone = arm(0, 0, 0, load=0.0)
    last = step(share=1.0)
    assert judge_step(window(arm(), gone), last, PRODUCTION).outcome is N
    assert judge_step(window(arm(), gone), last, PRODUCTION, reference=arm()).outcome is P
    assert judge_step(window(arm(errors=400), gone), last, PRODUCTION, reference=arm()).outcome is F
    # Before the last step nothing stands in: an empty stable arm is no data.
    assert judge_step(window(arm(), gone), step(share=0.5), PRODUCTION, reference=arm()).outcome is N


counts = st.integers(0, 4000)


@settings(max_examples=200)
@given(counts, counts, counts, st.integers(1, 2000), st.sampled_from([1000, 2000, 4000]))
def test_more_errors_never_turn_a_rollback_into_a_promotion(errors, stable_errors, slow, more, min_samples):
    rank = [F, E, N, I, P]

    def outcome(bad):
        return judge(arm(errors=min(bad, 4000), slow=slow), arm(errors=stable_errors), min_samples=min_samples).outcome

    before, after = outcome(errors), outcome(errors + more)
    assert rank.index(after) <= rank.index(before)


@settings(max_examples=200)
@given(
    st.sets(
        st.sampled_from(["requests", "errors", "slow", "ttft_p99", "tpot_p99", "oom_count", "engine_up", "load"]),
        min_size=1,
    ),
    st.sampled_from(["canary", "stable"]),
)
def test_missing_data_never_passes_a_step(missing, side):
    if side == "stable":
        missing = missing - {"oom_count", "engine_up"} or {"requests"}
    broken = arm(**dict.fromkeys(missing, UNKNOWN))
    judged = judge(**{side: broken})
    assert judged.outcome is N


def test_R1_false_alarms_of_a_harmless_canary_looked_at_again_and_again_stay_rare():
    """Sixty looks at two arms of one error rate; without paying for the looks a third would be rolled
    back."""
    rng = np.random.default_rng(4)
    rollouts, alarms, unpaid = 150, 0, 0
    for _ in range(rollouts):
        bad = rng.binomial(50, 0.02, size=60).cumsum()
        other = rng.binomial(450, 0.02, size=60).cumsum()
        looks = [(b, 50 * (k + 1), o, 450 * (k + 1)) for k, (b, o) in enumerate(zip(bad, other, strict=True))]
        alarms += any(
            b >= CONFIRMING and lower_difference(b, n, o, m, alpha_of_look(n, 50)) > 0 for b, n, o, m in looks
        )
        unpaid += any(lower_difference(b, n, o, m, 0.05) > 0 for b, n, o, m in looks)
    assert alarms / rollouts <= 0.08
    assert unpaid > 2 * alarms


def production(**changed):
    values = {
        "throughput_per_gpu": (100, "tok/s"),
        "cost_per_million_tokens": (7, "per million tokens"),
        "p99_latency": (1000, "ms"),
        "ttft_p99": (200, "ms"),
        "tpot_p99": (20, "ms"),
        "error_rate": (0.05, "%"),
        "oom_count": (0, "count"),
    }
    return {
        n: v if isinstance(v := changed.get(n, value), Reading) else Reading.of(v, unit)
        for n, (value, unit) in values.items()
    }


@pytest.mark.parametrize(
    ("expected", "after"),
    [
        (P, {"throughput_per_gpu": 118}),
        (F, {"throughput_per_gpu": 108}),
        (F, {"throughput_per_gpu": 118, "p99_latency": 1100}),
        (F, {"throughput_per_gpu": 118, "error_rate": 0.07}),
        (N, {"throughput_per_gpu": 118, "error_rate": UNKNOWN}),
        (
            I,
            {
                "throughput_per_gpu": 118,
                "p99_latency": Reading.of(900, "ms", mark="few_samples", cause="9 requests"),
            },
        ),
        (P, {"throughput_per_gpu": UNKNOWN, "cost_per_million_tokens": UNKNOWN}),
        (F, {"throughput_per_gpu": UNKNOWN, "cost_per_million_tokens": UNKNOWN, "oom_count": 1}),
    ],
)
def test_R5_production_is_judged_by_the_criteria_once_more(expected, after):
    assert production_verdict(production(), production(**after), PRODUCTION).outcome is expected


def test_R6_without_saturated_windows_the_gain_is_unverified_in_production():
    idle = Reading.unknown("no saturated second in the window")
    judged = production_verdict(
        production(), production(throughput_per_gpu=idle, cost_per_million_tokens=idle), PRODUCTION
    )
    assert judged.outcome is P
    assert [r.outcome for r in judged.reasons if "unverified in production" in r.text] == [N, N]


def test_B3_a_gain_inside_the_spread_of_production_is_not_one():
    judged = production_verdict(
        production(), production(throughput_per_gpu=118), PRODUCTION, floors={"throughput_per_gpu": 20.0}
    )
    assert judged.outcome is not P


def test_B3_a_wide_spread_of_production_excuses_no_breach():
    judged = production_verdict(
        production(), production(throughput_per_gpu=150, p99_latency=1100), PRODUCTION, floors={"p99_latency": 40.0}
    )
    assert judged.outcome is F


def test_nothing_read_in_production_is_no_data():
    assert production_verdict({}, {}, PRODUCTION).outcome is N
