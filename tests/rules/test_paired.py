"""Estimate, looks, classes and plan of a paired measurement, as tables."""

import math
import random

import pytest

from tasks.shared.paired import (
    ALPHA,
    Estimate,
    budget_sd,
    critical,
    difference,
    effect_of,
    estimate,
    log_ratio,
    looks,
    pairs_to_decide,
    planned_pairs,
    reaches,
    within,
)
from tasks.shared.records import Outcome

P, F, I = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE  # noqa: E741


def interval(low_pct, high_pct, pairs=5):
    low, high = math.log1p(low_pct / 100), math.log1p(high_pct / 100)
    return Estimate(pairs=pairs, mean=(low + high) / 2, sd=0.05, low=low, high=high)


def test_a_slot_that_is_faster_cancels_in_a_pair():
    # The second slot is 72 % faster, the candidate 10 %.
    assert log_ratio([(100, 172 * 1.1), (172, 100 * 1.1)]) == pytest.approx(math.log(1.1))


@pytest.mark.parametrize("orders", [[(1, 1)], [(0, 1), (1, 1)], [(1, 1), (1, math.nan)], [(1, 1), (-1, 1)], []])
def test_a_pair_that_lacks_a_number_gives_none(orders):
    assert log_ratio(orders) is None


def test_looks_grow_by_half_and_end_with_the_budget():
    assert looks(27) == (3, 5, 8, 12, 18, 27)
    assert looks(10) == (3, 5, 8, 10)
    assert looks(1) == (3,)


def test_looking_again_is_paid_for():
    assert critical(3) == pytest.approx(14.09, abs=0.01)  # t, 2 degrees of freedom, two-sided 0.005
    spent = sum(ALPHA / (k * (k + 1)) for k in range(1, 1000))
    assert spent < ALPHA


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5]])
def test_fewer_than_three_pairs_give_no_interval_and_no_class(values):
    found = estimate(values)
    assert found is None or found.low is None
    assert effect_of(found, 5) == "unstable"
    assert within(found, 5) is I
    assert reaches(found, 15) is I


@pytest.mark.parametrize(
    ("expected", "low", "high"),
    [
        ("effective", 5.1, 40),
        ("unstable", 4.9, 40),
        ("unstable", -1, 40),
        ("no effect", -4, 4.9),
        ("no effect", 0.5, 4),
        ("no effect", -4, -0.5),
        ("unstable", -4, 5.1),
        ("regression", -30, -0.1),
        ("unstable", -30, 0.1),
    ],
)
def test_V8_the_class_comes_from_the_whole_interval(expected, low, high):
    assert effect_of(interval(low, high), 5) == expected


def test_lower_is_better_turns_the_classes_round():
    assert effect_of(interval(-40, -20), 5, direction="lower") == "effective"
    assert effect_of(interval(10, 20), 5, direction="lower") == "regression"


@pytest.mark.parametrize(
    ("expected", "low", "high"), [(P, -20, 5), (P, -60, -40), (I, -20, 5.1), (I, 4, 30), (F, 5.1, 30), (I, -50, 90)]
)
def test_C2_a_guard_fails_only_with_confidence_and_straddling_holds_the_verdict_back(expected, low, high):
    assert within(interval(low, high), 5) is expected


@pytest.mark.parametrize(
    ("expected", "target", "low", "high"),
    [(P, 15, 15, 30), (I, 15, 14, 30), (F, 15, 2, 14.9), (P, -20, -40, -20), (I, -20, -40, -19), (F, -20, -19, 4)],
)
def test_C2_a_target_is_reached_by_the_whole_interval(expected, target, low, high):
    assert reaches(interval(low, high), target) is expected


def test_the_plan_grows_with_the_noise_and_gives_up_beyond_reason():
    needed = [planned_pairs(sd, 15, 5) for sd in (0.005, 0.02, 0.05, 0.1)]
    assert needed == sorted(needed)
    assert needed[0] == 3
    assert planned_pairs(0.02, 4, 5) is None  # a target below the smallest gain can never be shown


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_the_plan_holds_what_it_says(sd):
    needed, rng = planned_pairs(sd, 15, 5), random.Random(1)
    found = 0
    for _ in range(1000):
        values = [rng.gauss(math.log(1.15), sd) for _ in range(needed)]
        found += any(effect_of(estimate(values[:n]), 5) == "effective" for n in looks(needed))
    assert found >= 940


def test_the_interval_holds_at_every_look_on_pure_noise():
    rng, missed = random.Random(2), 0
    for _ in range(2000):
        values = [rng.gauss(0, 0.05) for _ in range(27)]
        intervals = [estimate(values[:n]) for n in looks(27)]
        missed += any(not i.low <= 0 <= i.high for i in intervals)
    assert missed / 2000 <= 0.015


def test_unstable_says_how_many_pairs_it_would_take():
    assert pairs_to_decide(interval(-1, 30), 5) > 5
    even = Estimate(pairs=5, mean=math.log1p(0.05), sd=0.05, low=-0.1, high=0.2)
    assert pairs_to_decide(even, 5) is None  # exactly on the bound no number of pairs decides


def test_C2_what_a_member_adds_is_a_difference_with_an_interval():
    found = difference([0.30, 0.31, 0.32], [0.10, 0.11, 0.12])
    assert found.mean == pytest.approx(0.2)
    assert found.low > 0
    assert difference([0.3, 0.3], [0.1, 0.1, 0.1]) is None
    noise = difference([0.1, 0.3, 0.2], [0.1, 0.25, 0.15])
    assert noise.low < 0 < noise.high


def test_B4_pairs_are_planned_for_more_spread_than_was_seen_and_less_so_the_more_was_seen():
    few, many = (estimate([0.1, -0.1] * n) for n in (4, 40))
    assert few is not None and many is not None
    assert 1.6 < budget_sd(few) / few.sd < 2.0
    assert 1.0 < budget_sd(many) / many.sd < 1.2
    assert budget_sd(Estimate(pairs=1, mean=0.0, sd=None, low=None)) == math.inf
