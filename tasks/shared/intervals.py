"""Exact intervals of shares and of their difference, and what looking repeatedly costs. Pure."""

from __future__ import annotations

import math

from scipy.special import bdtrc, betaincinv

from infra.errors import BadInput

FALSE_ALARM = 0.05
"""Chance that a harmless canary is called a breach by one guard over a whole step, all looks together."""

SUSPICION = 0.2
"""One-sided level from which a step waits for more data although a breach is not confirmed."""

POWER = 0.8
"""Chance of seeing the smallest harm that a step claims to exclude."""

CONFIRMING = 2
"""Fewest bad requests behind a confirmed breach: one failure is an event and not yet a rate (case CA4)."""


def lower_share(bad: float, total: float, alpha: float) -> float:
    """One-sided lower Clopper-Pearson limit of a share."""
    return 0.0 if bad <= 0 else float(betaincinv(bad, total - bad + 1, alpha))


def upper_share(bad: float, total: float, alpha: float) -> float:
    """One-sided upper Clopper-Pearson limit of a share."""
    return 1.0 if bad >= total else float(betaincinv(bad + 1, total - bad, 1 - alpha))


def lower_difference(bad_a: float, total_a: float, bad_b: float, total_b: float, alpha: float) -> float:
    """One-sided lower limit of share a minus share b.

    Limits of both shares put together by the square-and-add rule (Newcombe 1998, method 10), with exact
    limits in place of Wilson's, which call a single failure significant far too often. Does not fall when
    `bad_a` rises.

    Raises:
        BadInput: a count is negative, or larger than its total.
    """
    for bad, total in ((bad_a, total_a), (bad_b, total_b)):
        if total <= 0 or bad < 0 or bad > total:
            raise BadInput(f"{bad:g} of {total:g} requests is no share")
    share_a, share_b = bad_a / total_a, bad_b / total_b
    down = share_a - lower_share(bad_a, total_a, alpha)
    up = upper_share(bad_b, total_b, alpha) - share_b
    return share_a - share_b - math.hypot(down, up)


def alpha_of_look(requests: float, min_samples: float, look: int = 1) -> float:
    """The part of the false-alarm budget that this look may spend.

    Readings of a step grow from its start, so looks between two doublings of the traffic see mostly the same
    requests: the k-th doubling spends FALSE_ALARM / (k (k + 1)), which adds up to FALSE_ALARM over any
    number.

    Args:
        requests: of the canary, from the start of the step.
        look: number of this look where windows do not grow but follow each other.
    """
    doubling = 1 + math.floor(math.log2(max(requests / max(min_samples, 1), 1)))
    k = max(doubling, look, 1)
    return FALSE_ALARM / (k * (k + 1))


def smallest_excludable(requests: int, rate: float, alpha: float) -> float | None:
    """The smallest true rate that `requests` would show as a breach with probability 0.8.

    None when even a rate of 1 would not be seen.

    Args:
        requests: canary requests of the step.
        rate: rate that counts as harmless (stable's, plus what the guard allows), as a share.
        alpha: one-sided chance of a false alarm.
    """
    low, high = CONFIRMING, requests + 1
    while low < high:  # smallest count that a harmless canary reaches with at most alpha
        middle = (low + high) // 2
        if float(bdtrc(middle - 1, requests, rate)) <= alpha:
            high = middle
        else:
            low = middle + 1
    if low > requests:
        return None
    return float(betaincinv(low, requests - low + 1, POWER))
