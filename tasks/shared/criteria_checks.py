"""Criteria that parse and still cannot be judged by: contradictions, unknown metrics, broken rails. Pure."""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter
from collections.abc import Iterator

from tasks.shared.metric_names import CANARY_GUARDS, METRICS
from tasks.shared.records import CanaryStep, Criteria, GuardMetric, PrimaryMetric

DAY_S = 86_400.0
MEMORY_RAIL = 0.95
"""Largest gpu_memory_utilization that any criteria may allow (spec H4)."""


def faults(criteria: Criteria) -> Iterator[str]:
    """Every fault of the criteria in words; none when they can be judged by."""
    for index, primary in enumerate(criteria.primary):
        yield from _primary(primary, f"primary[{index}] ({primary.name})")
    for index, guard in enumerate(criteria.guards):
        yield from _guard(guard, f"guards[{index}] ({guard.name})")
    for what, names in (
        ("primary", [m.name for m in criteria.primary]),
        ("guards", [g.name for g in criteria.guards]),
    ):
        for name, times in Counter(names).items():
            if times > 1:
                yield f"`{what}` names {name} {times} times"
    yield from _steps(criteria.canary_steps, {g.name for g in criteria.guards})
    yield from _knobs(criteria)
    yield from _profile(criteria)
    if criteria.throughput_is == "goodput":
        yield "`throughput_is` is goodput, which no trial measures yet; write saturating_load"


def _metric(name: str, direction: str, where: str) -> Iterator[str]:
    spec = METRICS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, METRICS, 2, 0.5)
        yield f"{where}: no metric has this name; " + (
            f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(METRICS)}"
        )
    elif spec.better != direction:
        yield f"{where}: direction is {direction}, and {spec.better} is better for it"


def _primary(metric: PrimaryMetric, where: str) -> Iterator[str]:
    yield from _metric(metric.name, metric.direction, where)
    right = metric.target_pct > 0 if metric.direction == "higher" else metric.target_pct < 0
    if not right:
        yield (
            f"{where}: target_pct is {metric.target_pct:g}; a metric for which {metric.direction} is better "
            f"has a {'positive' if metric.direction == 'higher' else 'negative'} target"
        )


def _guard(guard: GuardMetric, where: str) -> Iterator[str]:
    yield from _metric(guard.name, guard.direction, where)
    if guard.direction == "higher" and guard.max_value is not None:
        yield f"{where}: max_value bounds from above, and higher is better for it; use max_increase_abs"
    for name in ("max_increase_pct", "max_increase_abs", "max_value", "absolute_floor"):
        value = getattr(guard, name)
        if value is not None and value < 0:
            yield f"{where}: {name} is {value:g}; limits are how much worse it may get, so 0 or more"


def _steps(steps: tuple[CanaryStep, ...], guards: set[str]) -> Iterator[str]:
    shares = [step.share for step in steps]
    if any(later <= earlier for earlier, later in itertools.pairwise(shares)):
        yield f"canary_steps: the shares {_list(shares)} do not ascend"
    if shares[-1] != 1:
        yield f"canary_steps: the last share is {shares[-1]:g}, and a rollout ends at 1"
    for index, step in enumerate(steps):
        where = f"canary_steps[{index}]"
        if not step.stop_on:
            yield f"{where}: stop_on is empty; name the guards that are judged, or `any`"
        for name in step.stop_on:
            if name == "any":
                if not guards & CANARY_GUARDS:
                    yield f"{where}: stop_on is `any`, and no guard can be read in production"
            elif name not in guards:
                near = difflib.get_close_matches(name, guards, 1, 0.5)
                yield f"{where}: stop_on names {name}, which is no guard" + (
                    f"; did you mean {near[0]}?" if near else f"; guards: {_list(sorted(guards))}"
                )
            elif name not in CANARY_GUARDS:
                yield (
                    f"{where}: stop_on names {name}, which is read in the sandbox only; "
                    f"in production: {_list(sorted(CANARY_GUARDS))}"
                )
        if step.max_hold_s < step.duration_s:
            yield (
                f"{where}: max_hold_s {step.max_hold_s:g} is shorter than duration_s {step.duration_s:g}, "
                "so the step would roll back before it is over"
            )


def _knobs(criteria: Criteria) -> Iterator[str]:
    for name, rail in criteria.knobs.items():
        if rail.max_factor is not None and rail.max_factor <= 1:
            yield f"knobs.{name}: max_factor is {rail.max_factor:g}; a factor of 1 or less allows no change"
        if rail.minimum is not None and rail.maximum is not None and rail.minimum > rail.maximum:
            yield f"knobs.{name}: minimum {rail.minimum:g} is above maximum {rail.maximum:g}"
        if name == "gpu_memory_utilization" and (rail.maximum is None or rail.maximum > MEMORY_RAIL):
            yield f"knobs.{name}: maximum is {rail.maximum}; the hard rail is {MEMORY_RAIL}"


def _profile(criteria: Criteria) -> Iterator[str]:
    measuring = criteria.measuring
    if measuring.short_below_tokens >= measuring.medium_below_tokens:
        yield (
            f"measuring: short_below_tokens {measuring.short_below_tokens} is not below medium_below_tokens "
            f"{measuring.medium_below_tokens}"
        )
    for metric in criteria.primary:
        if math.log1p(measuring.smallest_gain_pct / 100) >= abs(math.log1p(max(metric.target_pct, -99.0) / 100)):
            yield (
                f"measuring.smallest_gain_pct is {measuring.smallest_gain_pct:g}, not below the target of "
                f"{metric.name}, {metric.target_pct:+g} %"
            )
    if criteria.profile == "demo":
        if not criteria.gives_up:
            yield "`gives_up` is empty; a demo profile says what it does less of"
        return
    demo = "; profile demo may give this up, and says so in gives_up"
    if criteria.demo_policy_approves:
        yield "demo_policy_approves is true in profile production, where only a person approves"
    if criteria.windows.baseline_s < DAY_S:
        yield f"windows.baseline_s is {criteria.windows.baseline_s:g}, less than a day of {DAY_S:g} s{demo}"
    if missing := [w for w in ("short_prompts", "long_prompts") if w not in measuring.workloads]:
        yield f"measuring.workloads lacks {_list(missing)}: a win could be load-specific unseen{demo}"


def _list(values: list[float] | list[str]) -> str:
    return ", ".join(f"{v:g}" if isinstance(v, float) else v for v in values)
