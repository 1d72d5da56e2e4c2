"""The metrics that criteria may name: which way is better, in which unit, and where they can be read.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["sandbox", "production", "both"]


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    Attributes:
        better: which direction is better; never inferred from the sign of a change.
        unit: the unit that limits and comparisons are written in; a rate given as a ratio is converted.
        place: where a guard on it can be read. Only `production` and `both` can stop a canary step.
        latency: whether an empty server makes it look better (spec R6).
    """

    better: Literal["higher", "lower"]
    unit: str
    place: Place
    latency: bool = False


METRICS: dict[str, MetricSpec] = {
    "throughput_per_gpu": MetricSpec("higher", "tok/s", "both"),
    "throughput_short_prompts": MetricSpec("higher", "tok/s", "sandbox"),
    "throughput_long_prompts": MetricSpec("higher", "tok/s", "sandbox"),
    "cost_per_million_tokens": MetricSpec("lower", "per million tokens", "both"),
    "p50_latency": MetricSpec("lower", "ms", "sandbox", latency=True),
    "p90_latency": MetricSpec("lower", "ms", "sandbox", latency=True),
    "p99_latency": MetricSpec("lower", "ms", "both", latency=True),
    "ttft_p50": MetricSpec("lower", "ms", "sandbox", latency=True),
    "ttft_p99": MetricSpec("lower", "ms", "both", latency=True),
    "tpot_p50": MetricSpec("lower", "ms", "sandbox", latency=True),
    "tpot_p99": MetricSpec("lower", "ms", "both", latency=True),
    "queue_p99": MetricSpec("lower", "ms", "sandbox", latency=True),
    "error_rate": MetricSpec("lower", "%", "both"),
    "coverage": MetricSpec("higher", "%", "sandbox"),
    "oom_count": MetricSpec("lower", "count", "both"),
    "peak_memory": MetricSpec("lower", "bytes", "sandbox"),
    "preemptions": MetricSpec("lower", "count", "sandbox"),
    "prefix_hit_rate": MetricSpec("higher", "%", "sandbox"),
}

CANARY_GUARDS = frozenset({"p99_latency", "ttft_p99", "tpot_p99", "error_rate", "oom_count"})
"""Guards that stage 5 can read of one arm; the others are settled in the sandbox."""

RATES = frozenset({"error_rate", "coverage", "prefix_hit_rate"})
"""Metrics that may be measured as a ratio and are judged in per cent."""
