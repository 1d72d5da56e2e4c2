"""What a step exposes, and the smallest harm that it can see at its traffic (spec R1, case CA1). Pure."""

from __future__ import annotations

import math
from typing import Literal

from infra.errors import BadInput
from tasks.shared.intervals import FALSE_ALARM, smallest_excludable

PROXY_GRANULARITY = 10_000
"""Envoy's runtime fraction counts in ten thousandths."""


def effective_share(weight: float, replicas: int, *, split: Literal["replicas", "proxy"] = "replicas") -> float:
    """The share of traffic that a weight really gives the canary.

    Args:
        weight: wanted share, 0 to 1.
        replicas: with `replicas`, all replicas of the pool, of which the canary gets whole ones; with
            `proxy`, those of the canary, among which a proxy splits by request.

    Raises:
        BadInput: the weight is not a share, there is no replica, or the real share would be 0 (10 % of 3
            replicas is no canary at all).
    """
    if not math.isfinite(weight) or not 0 < weight <= 1:
        raise BadInput(f"a canary weight of {weight:g} is not a share above 0 and up to 1")
    if replicas < 1:
        raise BadInput("there is no replica to carry the canary", remedy="Start one before the step")
    parts = PROXY_GRANULARITY if split == "proxy" else replicas
    share = math.floor(weight * parts + 0.5) / parts
    if share <= 0:
        what = "ten thousandths" if split == "proxy" else f"{replicas} whole replicas"
        raise BadInput(
            f"a weight of {weight:.3%} comes to no traffic at all in {what}",
            remedy=f"The smallest share here is {1 / parts:.4g}",
        )
    return share


def smallest_excludable_harm(
    requests: float | None,
    stable_error_rate: float | None,
    *,
    allowed_increase: float = 0.0,
    alpha: float = FALSE_ALARM,
) -> str:
    """The smallest rise in errors that a step would have shown with 80 % probability, in words.

    Args:
        requests: the canary's, over the step; None when unknown.
        stable_error_rate: stable's over the same window, as a share; None when unknown.
        allowed_increase: what the guard allows on top, as a share.
        alpha: chance of a false alarm.
    """
    if requests is None or requests < 1:
        return "no harm at all can be excluded: the canary had no known traffic"
    if stable_error_rate is None:
        return f"no harm can be excluded at {requests:,.0f} requests: stable's error rate is unknown"
    count = int(requests)
    found = smallest_excludable(count, min(stable_error_rate + allowed_increase, 1.0), alpha)
    if found is None:
        return f"at {count:,} requests not even a canary that fails every request would be seen"
    times = (
        f", {found / stable_error_rate:,.1f} times stable's {stable_error_rate:.3%}"
        if stable_error_rate > 0
        else (", where stable had none")
    )
    return f"at {count:,} requests an error rate of {found:.3%} or more would be seen{times}; less would not"
