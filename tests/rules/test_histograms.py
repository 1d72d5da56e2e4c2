"""Quantiles of buckets and their validity marks."""

from __future__ import annotations

import math

import pytest

from infra.metrics.histograms import Buckets, bucket_width, nearest_bound, quantile, slower_than


def test_MS4_quantile_below_the_first_bound_is_marked():
    reading = quantile(Buckets.of({"0.3": 100, "1.0": 100, "+Inf": 100}), 0.99, unit="ms", scale=1000)
    assert (reading.value, reading.mark, reading.judges) == (300, "below_first_bound", False)


def test_MS4_quantile_in_the_overflow_is_marked():
    reading = quantile(Buckets.of({"7680": 0, "+Inf": 1}), 0.5, unit="s")
    assert (reading.value, reading.mark) == (7680, "in_overflow")


def test_MS4_few_samples_are_marked_and_only_an_infinite_bound_is_unknown():
    few = quantile(Buckets.of({"0.3": 1, "1": 3, "+Inf": 3}), 0.99, unit="s")
    assert few.mark == "few_samples"
    assert quantile(Buckets.of({"+Inf": 5}), 0.99, unit="s").status == "unknown"
    assert quantile(Buckets.of({"1": 0, "+Inf": 0}), 0.99, unit="s").status == "unknown"


def test_MS4_bucket_width_says_what_is_resolvable():
    buckets = Buckets.of({"0.3": 0, "1": 90, "2.5": 100, "+Inf": 100})
    assert bucket_width(buckets, 0.95) == 1.5
    assert bucket_width(Buckets.of({"0.3": 0, "+Inf": 1}), 0.5) is None


def test_slow_count_needs_a_bound_that_exists():
    buckets = Buckets.of({"0.3": 1, "1": 3, "+Inf": 4})
    assert slower_than(buckets, 1).value == 1
    with pytest.raises(ValueError, match="no bound"):
        slower_than(buckets, 0.9)
    assert nearest_bound(buckets.bounds, 0.5) == 0.3
    assert nearest_bound((math.inf,), 1) is None
