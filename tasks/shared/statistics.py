"""Medians, spreads, relative changes and block-bootstrap intervals. Pure: the seed is an argument.

Requests of one run share queues and batches, so they are not independent; intervals are made by resampling
whole arrival blocks, and the repeats above them. Treating requests as independent gave intervals several
times too narrow on autocorrelated latencies (tests/rules/test_statistics.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from infra.errors import BadInput
from tasks.shared.records import Reading, Record

NEAR_ZERO = 1e-9
"""Below this a baseline is no denominator (case OB1: 1e-16 preemptions gave giant gains)."""

FEWEST_BLOCKS = 4
"""With fewer arrival blocks on a side the bootstrap has nothing to resample and gives no interval."""

Blocks = tuple[tuple[float, ...], ...]
Repeats = tuple[Blocks, ...]
Statistic = Literal["p50", "p90", "p99", "mean", "rate"]


class ArrivalBlocks(Record):
    """What an interval of one metric is made from: values by side, repeat and arrival block."""

    metric: str
    statistic: Statistic = "p50"
    baseline: Repeats
    candidate: Repeats


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing, or when any value is not finite."""
    if not values or not all(math.isfinite(v) for v in values):
        return None
    return float(statistics.median(values))


def spread_pct(values: Sequence[float]) -> float | None:
    """(max - min) / |median| over repeats, %; None with fewer than two values or around zero."""
    middle = median(values)
    if middle is None or len(values) < 2 or abs(middle) < NEAR_ZERO:
        return None
    return (max(values) - min(values)) / abs(middle) * 100


def change(baseline: Reading, candidate: Reading, *, absolute_floor: float = 0.0) -> tuple[float | None, float | None]:
    """How far the candidate lies from the baseline: (per cent, absolute in the reading's unit).

    Both are None when either side is unknown, or their difference is no finite number. Where the baseline is at or
    below `absolute_floor` there is no denominator: the percentage is 0 when the candidate is also there, and None when
    it is not (case OB1).

    Raises:
        BadInput: the two sides are in different units.
    """
    if baseline.value is None or candidate.value is None:
        return None, None
    if baseline.unit and candidate.unit and baseline.unit != candidate.unit:
        raise BadInput(f"a baseline in {baseline.unit} cannot be compared with a candidate in {candidate.unit}")
    absolute = candidate.value - baseline.value
    if not math.isfinite(absolute):
        return None, None
    floor = max(absolute_floor, NEAR_ZERO)
    if abs(baseline.value) <= floor:
        return (0.0 if abs(candidate.value) <= floor else None), absolute
    relative = absolute / abs(baseline.value) * 100
    return (relative if math.isfinite(relative) else None), absolute


def arrival_blocks(times_s: Sequence[float], values: Sequence[float], block_s: float) -> Blocks:
    """Group values by the block of `block_s` seconds that their time falls in.

    Args:
        times_s: planned arrivals, seconds from the start of the run.
        values: one a time.

    Raises:
        BadInput: lengths differ, `block_s` is not positive, or a value is not finite.
    """
    if len(times_s) != len(values):
        raise BadInput(f"{len(times_s)} times for {len(values)} values")
    if block_s <= 0:
        raise BadInput(f"a block of {block_s} s", remedy="Give a positive length")
    if not all(math.isfinite(x) for x in (*times_s, *values)):
        raise BadInput("a time or value is not finite")
    found: dict[int, list[float]] = {}
    for time_s, value in zip(times_s, values, strict=True):
        found.setdefault(math.floor(time_s / block_s), []).append(value)
    return tuple(tuple(sorted(found[i])) for i in sorted(found))


def work_blocks(first_s: Sequence[float], last_s: Sequence[float], tokens: Sequence[int], blocks: int) -> Blocks:
    """Seconds per output token in each of `blocks` equal shares of a closed loop's work.

    Both sides of a pair do the same work, so the same shares are compared with each other; blocks of time would
    hold other requests on each side. A request's tokens lie evenly from its first to its last.

    Args:
        first_s, last_s: first and last token of each served request, seconds from the start of the run.
        tokens: output tokens of each.
    """
    shares = [np.linspace(one, two, n) for one, two, n in zip(first_s, last_s, tokens, strict=True) if n > 0]
    if not shares or blocks < 1:
        return ()
    times = np.sort(np.concatenate(shares))
    if len(times) < blocks:
        return ()
    ends = [round(len(times) * (i + 1) / blocks) for i in range(blocks)]
    found, start, start_s = [], 0, 0.0
    for end in ends:
        found.append(((float(times[end - 1]) - start_s) / (end - start),))
        start, start_s = end, float(times[end - 1])
    return tuple(found)


def block_bootstrap_ratio(
    baseline: Repeats,
    candidate: Repeats,
    *,
    statistic: Statistic = "p50",
    seed: int = 1,
    n: int = 1000,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Interval of (candidate / baseline - 1) in %, from resampled repeats and arrival blocks.

    The statistic is taken over each repeat's resampled blocks and the median over repeats is compared, as in
    the verdict. Repeats of equal number are drawn in pairs, since they ran beside each other; blocks of equal
    number too, since both sides replayed the same arrivals. Neither the order of values in a block nor of the
    pairs of repeats matters.

    Args:
        statistic: a quantile or `mean` over the values of all blocks, or `rate`, the inverse of their mean, where the
            values are seconds per token.
        level: coverage of the interval.

    Returns:
        (low, high) in per cent, or None: a side without repeats, with fewer than 4 blocks, or a zero
        baseline.
    """
    if not baseline or not candidate or min(len(r) for r in (*baseline, *candidate)) < FEWEST_BLOCKS:
        return None
    paired_repeats = len(baseline) == len(candidate)
    if paired_repeats:
        pairs = sorted((_sorted(b), _sorted(c)) for b, c in zip(baseline, candidate, strict=True))
        baseline, candidate = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    else:
        baseline, candidate = tuple(sorted(map(_sorted, baseline))), tuple(sorted(map(_sorted, candidate)))
    arrays_b, arrays_c = _arrays(baseline), _arrays(candidate)
    rng = np.random.default_rng(seed)
    ratios = np.full(n, np.nan)
    for i in range(n):
        picks_b = rng.integers(len(baseline), size=len(baseline))
        picks_c = picks_b if paired_repeats else rng.integers(len(candidate), size=len(candidate))
        values_b: list[float] = []
        values_c: list[float] = []
        blocks: NDArray[np.int64] | None = None
        for slot, pick in enumerate(picks_b):
            blocks = rng.integers(len(arrays_b[pick]), size=len(arrays_b[pick]))
            values_b.append(_statistic(arrays_b[pick], blocks, statistic))
            if paired_repeats:
                twin = arrays_c[picks_c[slot]]
                same = blocks if len(twin) == len(blocks) else rng.integers(len(twin), size=len(twin))
                values_c.append(_statistic(twin, same, statistic))
        if not paired_repeats:
            for pick in picks_c:
                blocks = rng.integers(len(arrays_c[pick]), size=len(arrays_c[pick]))
                values_c.append(_statistic(arrays_c[pick], blocks, statistic))
        middle_b, middle_c = float(np.median(values_b)), float(np.median(values_c))
        if abs(middle_b) > NEAR_ZERO:
            ratios[i] = middle_c / middle_b
    if not np.all(np.isfinite(ratios)):
        return None
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low - 1) * 100, float(high - 1) * 100


def _sorted(blocks: Blocks) -> Blocks:
    return tuple(tuple(sorted(block)) for block in blocks)


_Side = list[NDArray[np.float64]] | NDArray[np.float64]


def _arrays(repeats: Repeats) -> list[_Side]:
    """One array a block; blocks of equal size as the rows of one array, which resamples much faster."""
    sides: list[_Side] = []
    for repeat in repeats:
        if len({len(block) for block in repeat}) == 1:
            sides.append(np.asarray(repeat, dtype=np.float64))
        else:
            sides.append([np.asarray(block, dtype=np.float64) for block in repeat])
    return sides


def _statistic(blocks: _Side, picks: NDArray[np.int64], statistic: Statistic) -> float:
    values = blocks[picks].ravel() if isinstance(blocks, np.ndarray) else np.concatenate([blocks[i] for i in picks])
    if len(values) == 0:
        return math.nan
    if statistic == "rate":
        mean = float(values.mean())
        return 1 / mean if mean > 0 else math.nan
    if statistic == "mean":
        return float(values.mean())
    return float(np.percentile(values, float(statistic[1:])))
