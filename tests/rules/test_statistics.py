"""Medians, changes, and limits of shares."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import BadInput
from tasks.shared.intervals import (
    FALSE_ALARM,
    alpha_of_look,
    lower_difference,
    lower_share,
    smallest_excludable,
    upper_share,
)
from tasks.shared.records import Reading
from tasks.shared.statistics import change, median, spread_pct


def of(value, unit="ms"):
    return Reading.of(value, unit)


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        (None, []),
        (2.0, [2]),
        (2.0, [3, 1, 2]),
        (1.5, [1, 2]),
        (None, [1, math.nan]),
        (None, [1, math.inf]),
    ],
)
def test_median_is_none_of_nothing_and_of_what_is_not_finite(expected, values):
    assert median(values) == expected


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        (None, [100]),
        (None, []),
        (0.0, [5, 5]),
        (5.0, [100, 105, 100]),
        (None, [0, 0]),
    ],
)
def test_V3_spread_is_the_range_over_the_median(expected, values):
    assert spread_pct(values) == expected


@pytest.mark.parametrize(
    ("case", "baseline", "candidate", "floor", "pct", "absolute"),
    [
        ("0 to 0 is no change", 0, 0, 0, 0.0, 0.0),
        ("0 to positive has no ratio", 0, 0.02, 0, None, 0.02),
        ("nearly zero is zero", 1e-16, 1e-15, 0, 0.0, 9e-16),
        ("nearly zero to something has no ratio", 1e-16, 3, 0, None, 3.0),
        ("below the absolute floor both ways", 0.4, 0.5, 0.5, 0.0, 0.1),
        ("from under the floor to over it", 0.4, 2.0, 0.5, None, 1.6),
        ("plain", 100, 122, 0, 22.0, 22.0),
        ("lower", 200, 150, 0, -25.0, -50.0),
        ("a negative baseline keeps its sign", -10, -5, 0, 50.0, 5.0),
    ],
)
def test_OB1_relative_change_never_divides_by_nothing(case, baseline, candidate, floor, pct, absolute):
    relative, difference = change(of(baseline), of(candidate), absolute_floor=floor)
    assert relative == (None if pct is None else pytest.approx(pct)), case
    assert difference == pytest.approx(absolute), case


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_OB1_what_is_not_finite_is_unknown_and_gives_no_change(bad):
    assert change(of(bad), of(1)) == (None, None)
    assert change(of(1), of(bad)) == (None, None)


def test_units_are_compared_before_numbers():
    with pytest.raises(BadInput, match=r"ms.*s"):
        change(Reading.of(100, "ms"), Reading.of(0.1, "s"))


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_change_is_finite_or_none(one, two):
    relative, absolute = change(of(one), of(two))
    assert relative is None or math.isfinite(relative)
    assert absolute is not None


@given(
    st.integers(0, 200),
    st.integers(1, 200),
    st.integers(0, 200),
    st.integers(1, 200),
    st.sampled_from([0.2, 0.025, 0.001]),
)
def test_more_failures_never_lower_the_limit_of_a_difference(bad, total, other, other_total, alpha):
    bad, other = min(bad, total - 1), min(other, other_total)
    if bad < 0:
        return
    one = lower_difference(bad, total, other, other_total, alpha)
    two = lower_difference(bad + 1, total, other, other_total, alpha)
    assert two >= one - 1e-12


@given(st.integers(1, 500), st.data())
def test_exact_limits_hold_the_share(total, data):
    bad = data.draw(st.integers(0, total))
    assert lower_share(bad, total, 0.05) <= bad / total <= upper_share(bad, total, 0.05)


@pytest.mark.parametrize(("bad", "total"), [(-1, 10), (11, 10), (0, 0)])
def test_counts_that_are_no_share_are_refused(bad, total):
    with pytest.raises(BadInput):
        lower_difference(bad, total, 0, 10, 0.05)


def test_false_alarms_of_all_looks_together_stay_in_the_budget():
    assert sum(FALSE_ALARM / (k * (k + 1)) for k in range(1, 10_000)) <= FALSE_ALARM
    assert alpha_of_look(100, 100) > alpha_of_look(200, 100) > alpha_of_look(400, 100)
    assert alpha_of_look(100, 100, look=3) < alpha_of_look(100, 100)


@settings(max_examples=30)
@given(st.integers(10, 100_000), st.floats(0, 0.2))
def test_R1_smallest_excludable_harm_is_above_what_counts_as_harmless(requests, rate):
    found = smallest_excludable(requests, rate, 0.05)
    assert found is None or rate < found <= 1


def test_R1_half_a_per_cent_for_four_hours_sees_tenfold_and_not_doubled():
    found = smallest_excludable(3500, 0.0005, 0.05)
    assert 0.001 < found < 0.005  # stable's rate is 0.05 %
