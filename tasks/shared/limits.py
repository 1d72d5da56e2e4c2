"""One guard or one target, judged by itself (spec C2). Pure; for production's readings, and in the sandbox for what is
not measured in pairs (errors, coverage, memory).

The noise floor decides both ways. A change inside it is no change: it reaches no target and breaches no guard.
And where the floor is wider than a guard's limit, a reading that lies inside the limit by chance proves
nothing: the guard passes only when the change is better than the limit by at least the floor, else it is
INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.shared.records import GuardMetric, Outcome, PrimaryMetric, Reading, Reason
from tasks.shared.statistics import change

ROUNDING = 1e-9
"""Floating-point dust: a change of exactly the limit is inside it."""


def judge_guard(guard: GuardMetric, baseline: Reading, candidate: Reading, *, floor_pct: float | None) -> Reason:
    """Whether one guard holds. Missing or marked readings never pass.

    Args:
        floor_pct: noise floor, used by relative limits only. None means that it could not be taken: a change
            inside the limit is then INCONCLUSIVE, one beyond it FAIL, since there is no noise to excuse it
            with.
    """
    if guard.max_value is not None:
        missing = unusable(guard.name, (candidate,))
        return missing or _judge_value(guard, candidate)
    missing = unusable(guard.name, (baseline, candidate))
    if missing is not None:
        return missing
    relative, absolute = change(baseline, candidate, absolute_floor=guard.absolute_floor)
    if absolute is None:  # both are known, and their difference is no finite number
        text = f"{guard.name} is {candidate.text()} against {baseline.text()}: no difference can be taken"
        return Reason(rule=guard.name, outcome=Outcome.NO_DATA, text=text)
    sign = 1.0 if guard.direction == "lower" else -1.0
    both = f"{candidate.text()} against {baseline.text()}"
    if guard.max_increase_abs is not None:
        worse, limit, unit = sign * absolute, guard.max_increase_abs, candidate.unit
        unit = "percentage points" if unit == "%" else unit
        outcome = Outcome.PASS if worse <= limit + ROUNDING else Outcome.FAIL
        text = f"{guard.name} is {both}: {_worse(worse, unit)}, {limit:g} {unit} allowed"
        return Reason(rule=guard.name, outcome=outcome, text=text, observed=worse, limit=limit, unit=unit)
    limit = guard.max_increase_pct if guard.max_increase_pct is not None else 0.0
    if relative is None:  # from nothing to something: a violation when it is worse, never a division (OB1)
        outcome = Outcome.FAIL if sign * absolute > 0 else Outcome.PASS
        text = f"{guard.name} is {both}: there is no relative change from zero, and any worsening is a breach"
        return Reason(rule=guard.name, outcome=outcome, text=text, observed=absolute, limit=0.0, unit=candidate.unit)
    worse = sign * relative
    outcome, why = _against_floor(worse, limit, floor_pct)
    text = f"{guard.name} is {both}: {_worse(worse, '%')}, {limit:g} % allowed{why}"
    return Reason(rule=guard.name, outcome=outcome, text=text, observed=worse, limit=limit, unit="%")


def _against_floor(worse: float, limit: float, floor_pct: float | None) -> tuple[Outcome, str]:
    if floor_pct is None or math.isnan(floor_pct):
        if worse > limit + ROUNDING:
            return Outcome.FAIL, "; no noise floor is known to excuse it"
        return Outcome.INCONCLUSIVE, "; no noise floor is known, so nothing says how fine this reading is"
    noise = f" (noise floor {floor_pct:.1f} %)"
    if floor_pct <= limit + ROUNDING:
        return (Outcome.PASS if worse <= limit + ROUNDING else Outcome.FAIL), noise
    if worse <= limit - floor_pct:
        return Outcome.PASS, noise
    if worse > limit + ROUNDING and worse > floor_pct + ROUNDING:
        return Outcome.FAIL, noise
    return Outcome.INCONCLUSIVE, f"; the noise floor of {floor_pct:.1f} % is wider than the limit"


def _judge_value(guard: GuardMetric, candidate: Reading) -> Reason:
    limit = guard.max_value if guard.max_value is not None else 0.0
    value = candidate.value if candidate.value is not None else 0.0
    outcome = Outcome.PASS if value <= limit + ROUNDING else Outcome.FAIL
    text = f"{guard.name} is {candidate.text()}, at most {limit:g} {candidate.unit} allowed"
    return Reason(rule=guard.name, outcome=outcome, text=text, observed=value, limit=limit, unit=candidate.unit)


def judge_primary(
    metric: PrimaryMetric,
    baseline: Reading,
    candidate: Reading,
    *,
    floor_pct: float | None,
) -> Reason:
    """Whether one primary metric reaches its target.

    PASS: the change reaches the target and is larger than the floor. FAIL: the target is missed. INCONCLUSIVE: reached,
    and not resolved from noise.
    """
    missing = unusable(metric.name, (baseline, candidate))
    if missing is not None:
        return missing
    relative, absolute = change(baseline, candidate)
    both = f"{candidate.text()} against {baseline.text()}"
    if relative is None or absolute is None:
        return Reason(
            rule=metric.name,
            outcome=Outcome.NO_DATA,
            text=f"{metric.name} is {both}: no relative change can be taken from zero",
        )
    sign = 1.0 if metric.direction == "higher" else -1.0
    better, target = sign * relative, abs(metric.target_pct)
    text = f"{metric.name} is {both}: {relative:+.1f} %, target {metric.target_pct:+g} %"
    if better < target - ROUNDING:
        outcome = Outcome.FAIL
    elif floor_pct is None or math.isnan(floor_pct):
        outcome, text = Outcome.INCONCLUSIVE, f"{text}; no noise floor is known"
    elif better <= floor_pct:
        outcome, text = Outcome.INCONCLUSIVE, f"{text}; inside the noise floor of {floor_pct:.1f} %"
    else:
        outcome, text = Outcome.PASS, f"{text}, noise floor {floor_pct:.1f} %"
    return Reason(rule=metric.name, outcome=outcome, text=text, observed=relative, limit=metric.target_pct, unit="%")


def any_reached(primaries: Sequence[Reason]) -> list[Reason]:
    """The reasons that decide among primary metrics: one reached target is enough (spec C2).

    When one is reached, those that were not are told in its text and decide nothing, so the reasons of a
    judgement always add up to its outcome. When none is, all speak.
    """
    reached = [r for r in primaries if r.outcome is Outcome.PASS]
    if not reached:
        return list(primaries)
    others = [r.text for r in primaries if r.outcome is not Outcome.PASS]
    if others:
        text = f"{reached[0].text} (one primary metric is enough; {'; '.join(others)})"
        reached[0] = reached[0].model_copy(update={"text": text})
    return reached


def unusable(name: str, readings: tuple[Reading, ...]) -> Reason | None:
    """Why these readings judge nothing: one is unknown (NO_DATA) or marked (INCONCLUSIVE); None when they judge."""
    for reading in readings:
        if reading.value is None:
            return Reason(rule=name, outcome=Outcome.NO_DATA, text=f"{name} is {reading.text()}")
    for reading in readings:
        if not reading.judges:
            return Reason(
                rule=name,
                outcome=Outcome.INCONCLUSIVE,
                observed=reading.value,
                unit=reading.unit,
                text=f"{name} is {reading.text()}: a marked reading judges nothing ({reading.cause})",
            )
    return None


def _worse(amount: float, unit: str) -> str:
    if abs(amount) <= ROUNDING:
        return "unchanged"
    return f"{abs(amount):.3g} {unit} {'worse' if amount > 0 else 'better'}"
