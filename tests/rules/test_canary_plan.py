"""Plan, approval, and what a step exposes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import BadInput
from tasks.canary.exposure import effective_share, smallest_excludable_harm
from tasks.canary.plan import approval_valid, rollout_plan
from tasks.canary.records import Approval
from tasks.shared.records import Outcome, OutcomeClass
from tests.rules.arm_readings import HASH, plan
from tests.rules.serving_configs import serving_config
from tests.rules.trial_records import BASELINE, DEMO, PRODUCTION, trial, verdict

F, N, I, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def test_S1_plan_holds_what_was_measured_and_what_a_rollback_goes_back_to():
    made = plan()
    assert made.changes == {"max_num_seqs": 16}
    assert made.config_hash == serving_config(max_num_seqs=16).config_hash()
    assert made.baseline_config == BASELINE
    assert made.steps == PRODUCTION.canary_steps
    assert made.expected_gain_pct == pytest.approx(25.5)  # V12, V9: held out +28 %, less 2.5 points
    assert made.risks


def test_V9_the_learned_discount_is_taken_off():
    assert plan(discount_pct=4.0).expected_gain_pct == pytest.approx(24)


def test_the_same_verdict_gives_the_same_plan_id():
    assert plan().plan_id == plan(created_s=2000.0).plan_id


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("its verdict is FAIL", {"outcome": F}),
        ("its verdict is INCONCLUSIVE", {"outcome": I}),
        ("its verdict is NO_DATA", {"outcome": N}),
        ("unpinned", {"pinned": False}),
        ("judged by criteria", {"hashed": "0" * 64}),
        (
            "the held-out trial is unverified",
            {"held": trial({"max_num_seqs": 16}, 128.0, held_out=True, outcome_class=OutcomeClass.UNVERIFIED)},
        ),
        ("not on held-out traffic", {"held": trial({"max_num_seqs": 16}, 128.0)}),
        ("the held-out configuration", {"held": trial({"max_num_seqs": 32}, 128.0, held_out=True)}),
    ],
)
def test_S2_S3_no_plan_without_a_passing_pinned_verified_verdict(words, options):
    with pytest.raises(BadInput, match=words):
        rollout_plan(verdict(**options), PRODUCTION, HASH, baseline_config=BASELINE, created_s=0)


def test_C3_no_plan_under_other_criteria_or_for_another_baseline():
    with pytest.raises(BadInput, match="criteria given hash to"):
        rollout_plan(verdict(), DEMO, HASH, baseline_config=BASELINE, created_s=0)
    with pytest.raises(BadInput, match="the baseline hashes to"):
        plan(baseline_config=serving_config(max_num_seqs=9))


def test_V12_no_plan_without_a_held_out_trial():
    with pytest.raises(BadInput, match="held-out"):
        rollout_plan(
            verdict().model_copy(update={"held_out": None}),
            PRODUCTION,
            HASH,
            baseline_config=BASELINE,
            created_s=0,
        )


def approval(**changes):
    made = plan()
    return Approval(
        **{
            "plan_hash": made.content_hash(),
            "config_hash": made.config_hash,
            "decision": "approve",
            "by": "Ada",
            "at_s": 1500.0,
            "expires_s": 5000.0,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("expected", "given_", "now_s"),
    [
        (P, approval(), 2000),
        (N, None, 2000),
        (F, approval(decision="reject"), 2000),
        (F, approval(), 5000),
        (F, approval(), 6000),
        (F, approval(plan_hash="0" * 64), 2000),
        (F, approval(config_hash="0" * 64), 2000),
        (F, approval(by=" "), 2000),
        (F, approval(at_s=9999.0), 2000),
        (F, approval(at_s=1.0), 2000),
        (P, approval(at_s=2001.0), 2000),  # written by a machine whose clock is ahead
        (P, approval(at_s=2060.0), 2000),
        (F, approval(at_s=2061.0), 2000),
        (P, approval(at_s=940.0), 2000),
        (F, approval(at_s=939.0), 2000),
    ],
)
def test_S1_only_an_unexpired_yes_to_exactly_this_plan_passes(expected, given_, now_s):
    assert approval_valid(plan(), given_, now_s).outcome is expected


@pytest.mark.parametrize(
    ("expected", "weight", "replicas", "split"),
    [
        (1 / 3, 0.3, 3, "replicas"),
        (0.5, 0.5, 2, "replicas"),
        (1.0, 1.0, 3, "replicas"),
        (0.005, 0.005, 1, "proxy"),
        (0.0001, 0.00006, 1, "proxy"),
    ],
)
def test_CA1_the_real_share_is_known(expected, weight, replicas, split):
    assert effective_share(weight, replicas, split=split) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weight", "replicas", "split"),
    [
        (0.1, 3, "replicas"),
        (0.005, 32, "replicas"),
        (0.00001, 1, "proxy"),
        (0.5, 0, "proxy"),
        (0, 3, "replicas"),
        (1.1, 3, "replicas"),
        (math.nan, 3, "replicas"),
        (-0.1, 3, "replicas"),
    ],
)
def test_CA1_a_share_that_rounds_to_nothing_is_refused(weight, replicas, split):
    with pytest.raises(BadInput):
        effective_share(weight, replicas, split=split)


def test_R1_smallest_harm_of_half_a_per_cent_for_four_hours():
    text = smallest_excludable_harm(3500, 0.0005, allowed_increase=0.0001)
    times = float(text.split(" times")[0].split(", ")[-1])
    assert 2 < times <= 10
    assert "3,500 requests" in text


@pytest.mark.parametrize(
    ("words", "requests", "rate"),
    [
        ("no harm at all", 0, 0.001),
        ("no harm at all", None, 0.001),
        ("unknown", 100, None),
        ("where stable had none", 100, 0.0),
        ("not even", 1, 0.001),
    ],
)
def test_R1_a_step_that_sees_nothing_says_so(words, requests, rate):
    assert words in smallest_excludable_harm(requests, rate)


@settings(max_examples=50)
@given(st.integers(2, 50_000), st.floats(0, 0.1))
def test_R1_more_traffic_excludes_no_less(requests, rate):
    from tasks.shared.intervals import smallest_excludable

    few, many = smallest_excludable(requests, rate, 0.05), smallest_excludable(requests * 4, rate, 0.05)
    assert few is None or (many is not None and many <= few + 1e-9)
