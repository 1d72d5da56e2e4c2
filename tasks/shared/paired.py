"""Two sides measured side by side: estimate, looks, classes and plan (docs/decisions/0009). Pure.

One pair holds two spans, one in each order, and gives one number: `d = (ln r_AB + ln r_BA) / 2` with
`r = candidate / baseline`. What a slot or a moment gives to whoever is there cancels in it (a crossover design; two
sides at once are known as duet benchmarking, Bulej et al., ICPE 2020). The interval is Student's t over pairs. Looking
again is paid for: the k-th look may err with ALPHA / (k (k + 1)), which adds up to ALPHA over any number of looks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from scipy.stats import chi2
from scipy.stats import nct as noncentral
from scipy.stats import t as student

from tasks.shared.records import Outcome, Record
from tasks.shared.statistics import NEAR_ZERO

FEWEST_PAIRS = 3
ALPHA = 0.01
"""Chance that any interval of one measurement, over all its looks, misses the true ratio."""
POWER = 0.95
SPREAD_LIMIT = 0.95
LOOK_GROWTH = 1.5
MOST_PLANNED = 10_000

Effect = Literal["effective", "regression", "no effect", "unstable"]


def log_ratio(orders: Sequence[tuple[float, float]]) -> float | None:
    """`d` of one pair from (baseline, candidate) of its two orders; None when one of the four is no positive number, or
    so near to zero that it is no denominator (case OB1)."""
    if len(orders) != 2 or any(not (math.isfinite(v) and v > NEAR_ZERO) for order in orders for v in order):
        return None
    return sum(math.log(candidate / baseline) for baseline, candidate in orders) / 2


def looks(most: int) -> tuple[int, ...]:
    """The numbers of pairs after which a measurement is looked at: 3, 5, 8, 12, 18, … and `most`."""
    found, n = [], FEWEST_PAIRS
    while n < most:
        found.append(n)
        n = math.ceil(n * LOOK_GROWTH)
    return (*found, max(most, FEWEST_PAIRS))


def critical(pairs: int) -> float:
    """Half the width of the interval at `pairs` pairs, in standard errors.

    The number of the look is that of the schedule's first look with so many pairs, whatever the budget.
    """
    k, n = 1, FEWEST_PAIRS
    while n < pairs:
        k, n = k + 1, math.ceil(n * LOOK_GROWTH)
    return float(student.ppf(1 - ALPHA / (k * (k + 1)) / 2, pairs - 1))


class Estimate(Record):
    """What pairs say of the ratio candidate / baseline, in natural logarithms."""

    pairs: int = Field(ge=0)
    mean: float
    sd: float | None = Field(description="of the pairs' d; None with fewer than two")
    low: float | None = Field(description="of the interval that holds at every look; None with fewer than three pairs")
    high: float | None = None

    @property
    def change_pct(self) -> float:
        """The ratio as a change, %."""
        return math.expm1(self.mean) * 100

    @property
    def low_pct(self) -> float | None:
        """Lower end, %."""
        return None if self.low is None else math.expm1(self.low) * 100

    @property
    def high_pct(self) -> float | None:
        """Upper end, %."""
        return None if self.high is None else math.expm1(self.high) * 100

    def text(self) -> str:
        """`+12.3 % (+9.1 to +15.6 %), 5 pairs`."""
        if self.low_pct is None or self.high_pct is None:
            return f"{self.change_pct:+.1f} %, {self.pairs} pairs of {FEWEST_PAIRS} needed"
        return f"{self.change_pct:+.1f} % ({self.low_pct:+.1f} to {self.high_pct:+.1f} %), {self.pairs} pairs"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean of `d` with its interval; None of nothing. Fewer than three pairs give no interval."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    sd = statistics.stdev(values) if n > 1 else None
    if sd is None or n < FEWEST_PAIRS:
        return Estimate(pairs=n, mean=mean, sd=sd, low=None)
    half = critical(n) * sd / math.sqrt(n)
    return Estimate(pairs=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def effect_of(found: Estimate | None, smallest_gain_pct: float, *, direction: str = "higher") -> Effect:
    """The class of a ratio, from its interval alone: never from fewer than three pairs, never from a point.

    effective: the whole interval is better than the smallest gain. regression: the whole interval is worse than no
    change. no effect: the whole interval lies within the smallest gain on both sides. Otherwise unstable.
    """
    if found is None or found.low is None or found.high is None:
        return "unstable"
    low, high = (found.low, found.high) if direction == "higher" else (-found.high, -found.low)
    gain = math.log1p(smallest_gain_pct / 100)
    if low > gain:
        return "effective"
    if -gain <= low and high <= gain:
        return "regression" if high < 0 and low < -gain else "no effect"
    return "regression" if high < 0 else "unstable"


def within(found: Estimate | None, limit_pct: float, *, direction: str = "lower") -> Outcome:
    """Whether a metric stays inside what it may get worse by.

    FAIL: beyond the limit with confidence. PASS: inside it with confidence. INCONCLUSIVE: the interval straddles it.
    """
    if found is None or found.low is None or found.high is None:
        return Outcome.INCONCLUSIVE
    low, high = (found.low, found.high) if direction == "lower" else (-found.high, -found.low)
    limit = math.log1p(limit_pct / 100)
    if low > limit:
        return Outcome.FAIL
    return Outcome.PASS if high <= limit else Outcome.INCONCLUSIVE


def reaches(found: Estimate | None, target_pct: float) -> Outcome:
    """Whether a primary metric reaches its target (negative: lower is better).

    PASS: the whole interval is at the target or beyond it. FAIL: the whole interval misses it.
    """
    if found is None or found.low is None or found.high is None:
        return Outcome.INCONCLUSIVE
    target = math.log1p(target_pct / 100)
    near, far = (found.low, found.high) if target_pct > 0 else (-found.high, -found.low)
    if near >= abs(target):
        return Outcome.PASS
    return Outcome.FAIL if far < abs(target) else Outcome.INCONCLUSIVE


def power_at(pairs: int, sd: float, distance: float) -> float:
    """Chance that the interval after `pairs` pairs ends nearer than `distance` (in logarithms) to the true value:
    Student's t with noncentrality distance / (sd / sqrt(pairs))."""
    if sd <= 0:
        return 1.0
    return float(noncentral.sf(critical(pairs), pairs - 1, distance * math.sqrt(pairs) / sd))


def pairs_for(sd: float, distance: float, power: float) -> int | None:
    """Fewest pairs of the looks' schedule that have this power; None beyond MOST_PLANNED."""
    if distance <= 0:
        return None
    return next((n for n in looks(MOST_PLANNED) if power_at(n, sd, distance) >= power), None)


def planned_pairs(sd: float, target_pct: float, smallest_gain_pct: float) -> int | None:
    """Pairs after which a true gain of `target_pct` is called effective with 95 % power; None beyond MOST_PLANNED.

    Args:
        sd: of the pairs' d, from the A/A duet.
        smallest_gain_pct: the bound that the interval must clear.
    """
    return pairs_for(sd, math.log1p(abs(target_pct) / 100) - math.log1p(smallest_gain_pct / 100), POWER)


def budget_sd(found: Estimate) -> float:
    """The spread that pairs are planned for: the upper limit of what was seen, at 95 %, since the spread of a few pairs
    is itself uncertain (chi-square law of a variance)."""
    if found.sd is None:
        return math.inf
    return found.sd * math.sqrt((found.pairs - 1) / float(chi2.ppf(1 - SPREAD_LIMIT, found.pairs - 1)))


def pairs_to_decide(found: Estimate, smallest_gain_pct: float) -> int | None:
    """Pairs that it would take until the interval gives a class, were mean and spread what they are now."""
    if found.sd is None:
        return None
    gain = math.log1p(smallest_gain_pct / 100)
    return pairs_for(found.sd, max(found.mean - gain, -found.mean, gain - abs(found.mean)), 0.5)


def difference(full: Sequence[float], without: Sequence[float]) -> Estimate | None:
    """What is added to `without`, both against the same baseline, in logarithms; Welch's interval.

    None with fewer than three pairs on a side.
    """
    if min(len(full), len(without)) < FEWEST_PAIRS:
        return None
    one, two = (statistics.variance(v) / len(v) for v in (full, without))
    mean, error = statistics.fmean(full) - statistics.fmean(without), math.sqrt(one + two)
    n = min(len(full), len(without))
    freedom = (one + two) ** 2 / (one**2 / (len(full) - 1) + two**2 / (len(without) - 1)) if error > 0 else n - 1
    half = float(student.ppf(1 - ALPHA / 2, freedom)) * error
    return Estimate(pairs=n, mean=mean, sd=error * math.sqrt(n), low=mean - half, high=mean + half)
