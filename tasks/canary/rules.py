"""Stage 5's judgement of one step: stable and canary over the same window (spec R1, R4, R6). Pure.

A guard on a share (errors, slow requests) has three answers. FAIL: the share is higher than allowed beyond
doubt, at a level that pays for looking repeatedly. INCONCLUSIVE: it looks higher and could be chance, so the
step waits. PASS: nothing speaks for harm, which excludes only the harm that the step's traffic can show; the
step says which.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.canary.records import ArmReadings, CanaryReadings, RolloutState
from tasks.shared.intervals import CONFIRMING, SUSPICION, alpha_of_look, lower_difference
from tasks.shared.limits import any_reached, judge_guard, judge_primary
from tasks.shared.metric_names import CANARY_GUARDS, METRICS
from tasks.shared.outcomes import judgement
from tasks.shared.records import CanaryStep, Criteria, GuardMetric, Judgement, Outcome, Reading, Reason

SLOW_SHARE = 0.01
"""By definition of P99: the share of requests that may be slower than the baseline's P99 plus its
allowance."""


def judge_step(
    readings: CanaryReadings,
    step: CanaryStep,
    criteria: Criteria,
    *,
    reference: ArmReadings | None = None,
    look: int = 1,
    floors: Mapping[str, float | None] | None = None,
) -> Judgement:
    """One step judged over one window that begins with the step.

    Judged are the guards that the step stops on; a dead engine and an out-of-memory stop every step. Unknown
    readings are NO_DATA, too few requests INCONCLUSIVE; neither passes. Latency at lower load per replica:
    worse is a breach, better is no information (INCONCLUSIVE). At higher load it is the other way round.

    Args:
        readings: both arms, counted from the start of the step. (Where windows follow each other instead,
            pass `look`, the number of this one.)
        reference: stands in for stable where stable has no traffic left, as at share 1; see
        `stable_reference`.
        floors: production spread by metric, % (spec B3), for ttft_p99 and tpot_p99; absent means 0.
    """
    canary = readings.canary
    named = {g for g in CANARY_GUARDS if "any" in step.stop_on or g in step.stop_on}
    guards = [g for g in criteria.guards if g.name in named]
    reasons: list[Reason] = [_engine_up(canary)]
    oom = next((g for g in criteria.guards if g.name == "oom_count"), None)
    if oom is not None and ("oom_count" in named or (canary.oom_count.value or 0) > (oom.max_value or 0)):
        reasons.append(
            judge_guard(
                oom.model_copy(
                    update={
                        "max_value": oom.max_value or 0.0,
                        "max_increase_abs": None,
                        "max_increase_pct": None,
                    }
                ),
                canary.oom_count,
                canary.oom_count,
                floor_pct=None,
            )
        )
    stable, borrowed = _other_arm(readings.stable, reference, step)
    volume = _volume(canary, stable, step)
    reasons.append(volume)
    if volume.outcome is Outcome.PASS:
        alpha = alpha_of_look(canary.requests.value or 0, step.min_samples, look)
        for guard in guards:
            if guard.name == "error_rate":
                reasons.append(_errors(guard, canary, stable, alpha, borrowed))
            elif guard.name == "p99_latency":
                reasons.append(_slow(guard, canary, stable, alpha, step=step, note=borrowed))
            elif guard.name != "oom_count":
                reasons.append(_quantile(guard, canary, stable, step, (floors or {}).get(guard.name) or 0.0))
    if not guards:
        reasons.append(
            Reason(
                rule="stop_on",
                outcome=Outcome.NO_DATA,
                text=f"the step stops on {', '.join(step.stop_on)}, none of which is a known guard",
            )
        )
    return judgement(reasons)


def stable_reference(state: RolloutState) -> ArmReadings | None:
    """Stable as it was before its traffic was taken away: the stand-in for the step at full share.

    Of each earlier step the last reading, which covers it whole; among those with requests enough for the
    present step the one with the highest load per replica, since the canary now carries everything. Where
    none has enough, the one with the most requests, so that the judgement says how few they are. None when
    nothing was read.
    """
    last = {d.step: d.readings.stable for d in state.decisions if d.readings is not None}
    seen = [a for a in last.values() if a.requests.judges and a.load_per_replica.value is not None]
    needed = state.plan.steps[min(state.step, len(state.plan.steps) - 1)].min_samples
    enough = [arm for arm in seen if (arm.requests.value or 0) >= needed]
    if enough:
        return max(enough, key=lambda arm: arm.load_per_replica.value or 0)
    return max(seen, key=lambda arm: arm.requests.value or 0, default=None)


def _other_arm(
    stable: ArmReadings,
    reference: ArmReadings | None,
    step: CanaryStep,
) -> tuple[ArmReadings, str]:
    if step.share < 1 or reference is None:
        return stable, ""
    if (stable.requests.value or 0) >= step.min_samples:
        return stable, ""
    return reference, ", from an earlier step since stable has no traffic left"


def _engine_up(canary: ArmReadings) -> Reason:
    up = canary.engine_up
    if up.value is None:
        return Reason(rule="engine_up", outcome=Outcome.NO_DATA, text=f"the canary's engine is {up.text()}")
    outcome = Outcome.PASS if up.value > 0 else Outcome.FAIL
    return Reason(
        rule="engine_up",
        outcome=outcome,
        observed=up.value,
        limit=1.0,
        unit="engines",
        text=f"the canary's engine is {'up' if up.value > 0 else 'down'}",
    )


def _volume(canary: ArmReadings, stable: ArmReadings, step: CanaryStep) -> Reason:
    for side, arm in (("canary", canary), ("stable", stable)):
        value = arm.requests.value
        if value is None:
            return Reason(rule="requests", outcome=Outcome.NO_DATA, text=f"{side} requests: {arm.requests.text()}")
        if value <= 0:
            return Reason(
                rule="requests",
                outcome=Outcome.NO_DATA,
                observed=0.0,
                limit=float(step.min_samples),
                unit="requests",
                text=f"no data: {side} had no request in the window",
            )
        if value < step.min_samples:
            return Reason(
                rule="requests",
                outcome=Outcome.INCONCLUSIVE,
                observed=value,
                limit=float(step.min_samples),
                unit="requests",
                text=f"{side} had {value:,.0f} requests, {step.min_samples:,} are needed to judge",
            )
    return Reason(
        rule="requests",
        outcome=Outcome.PASS,
        observed=canary.requests.value,
        limit=float(step.min_samples),
        unit="requests",
        text=f"canary had {canary.requests.value:,.0f} requests, stable {stable.requests.value:,.0f}",
    )


def _counts(name: str, arms: tuple[tuple[str, ArmReadings], ...], field: str) -> tuple[list[float], Reason | None]:
    found: list[float] = []
    for side, arm in arms:
        reading: Reading = getattr(arm, field)
        if reading.value is None:
            return [], Reason(rule=name, outcome=Outcome.NO_DATA, text=f"{side} {field}: {reading.text()}")
        if not reading.judges:
            return [], Reason(
                rule=name,
                outcome=Outcome.INCONCLUSIVE,
                text=f"{side} {field}: {reading.text()}: a marked reading judges nothing",
            )
        if not 0 <= reading.value <= (arm.requests.value or 0):
            return [], Reason(
                rule=name,
                outcome=Outcome.ERROR,
                observed=reading.value,
                limit=arm.requests.value,
                unit="requests",
                text=f"{side}: {reading.value:,.0f} {field} among "
                f"{arm.requests.value:,.0f} requests; the two are not of one window",
            )
        found.append(reading.value)
    return found, None


def _errors(guard: GuardMetric, canary: ArmReadings, stable: ArmReadings, alpha: float, note: str) -> Reason:
    counts, fault = _counts(guard.name, (("canary", canary), ("stable", stable)), "errors")
    if fault is not None:
        return fault
    base = counts[1] / (stable.requests.value or 1)
    if guard.max_increase_abs is not None:
        allowed = guard.max_increase_abs / 100  # percentage points
    elif guard.max_value is not None:
        allowed = guard.max_value / 100 - base
    else:
        allowed = base * (guard.max_increase_pct or 0.0) / 100
    return _share(guard.name, "errors", counts, canary, stable, allowed=allowed, alpha=alpha, note=note)


def _slow(
    guard: GuardMetric,
    canary: ArmReadings,
    stable: ArmReadings,
    alpha: float,
    *,
    step: CanaryStep,
    note: str,
) -> Reason:
    """P99 as the share of requests slower than a histogram bound near its limit (spec R1).

    Allowed is 1 %, what P99 means at its limit; where stable itself is slower than that, or the nearest bound
    lies lower, stable's own share plus the guard's percentage of it.
    """
    if canary.slow_bound_ms is None or stable.slow_bound_ms is None:
        return Reason(
            rule=guard.name,
            outcome=Outcome.NO_DATA,
            text="no histogram bound lies near the limit of P99, so slow requests cannot be counted",
        )
    if canary.slow_bound_ms != stable.slow_bound_ms:
        return Reason(
            rule=guard.name,
            outcome=Outcome.ERROR,
            text=f"slow means {canary.slow_bound_ms:g} ms on canary and {stable.slow_bound_ms:g} on stable",
        )
    counts, fault = _counts(guard.name, (("canary", canary), ("stable", stable)), "slow")
    if fault is not None:
        return fault
    base = counts[1] / (stable.requests.value or 1)
    allowed = max(SLOW_SHARE - base, base * (guard.max_increase_pct or 0.0) / 100)
    text = f" slower than {canary.slow_bound_ms:g} ms{note}"
    said = _share(guard.name, "requests", counts, canary, stable, allowed=allowed, alpha=alpha, note=text)
    return _with_load(said, canary, stable, step)


def _share(
    rule: str,
    what: str,
    counts: list[float],
    canary: ArmReadings,
    stable: ArmReadings,
    *,
    allowed: float,
    alpha: float,
    note: str,
) -> Reason:
    total_c, total_s = canary.requests.value or 1, stable.requests.value or 1
    difference = counts[0] / total_c - counts[1] / total_s
    sure = lower_difference(counts[0], total_c, counts[1], total_s, alpha)
    maybe = lower_difference(counts[0], total_c, counts[1], total_s, SUSPICION)
    text = (
        f"{counts[0]:,.0f} of {total_c:,.0f} {what} on canary, {counts[1]:,.0f} of {total_s:,.0f} on "
        f"stable{note}: {difference * 100:+.3f} percentage points, {allowed * 100:.3f} allowed"
    )
    if sure > allowed and counts[0] >= CONFIRMING:
        outcome, text = Outcome.FAIL, f"{text}; at least {sure * 100:+.3f} beyond doubt"
    elif maybe > allowed:
        outcome, text = Outcome.INCONCLUSIVE, f"{text}; looks worse and could be chance"
    else:
        outcome = Outcome.PASS
    return Reason(
        rule=rule,
        outcome=outcome,
        text=text,
        observed=difference * 100,
        limit=allowed * 100,
        unit="percentage points",
    )


def _quantile(
    guard: GuardMetric,
    canary: ArmReadings,
    stable: ArmReadings,
    step: CanaryStep,
    floor_pct: float,
) -> Reason:
    one, two = (stable.ttft_p99, canary.ttft_p99) if guard.name == "ttft_p99" else (stable.tpot_p99, canary.tpot_p99)
    return _with_load(judge_guard(guard, one, two, floor_pct=floor_pct), canary, stable, step)


def _with_load(reason: Reason, canary: ArmReadings, stable: ArmReadings, step: CanaryStep) -> Reason:
    """R6: at lower load per replica better says nothing, at higher load worse says nothing."""
    if reason.outcome not in {Outcome.PASS, Outcome.FAIL}:
        return reason
    mine, other = canary.load_per_replica.value, stable.load_per_replica.value
    if mine is None or other is None or other <= 0:
        if reason.outcome is Outcome.FAIL:
            return reason
        return reason.model_copy(
            update={
                "outcome": Outcome.NO_DATA,
                "text": f"{reason.text}; load per replica is unknown, so this is no proof",
            }
        )
    ratio = mine / other
    load = f"canary carries {mine:.3g} requests/s a replica, stable {other:.3g}"
    if reason.outcome is Outcome.PASS and ratio < step.comparable_load:
        return reason.model_copy(
            update={
                "outcome": Outcome.INCONCLUSIVE,
                "text": f"{reason.text}; {load}: at lower load this is no information",
            }
        )
    if reason.outcome is Outcome.FAIL and ratio * step.comparable_load > 1:
        return reason.model_copy(
            update={
                "outcome": Outcome.INCONCLUSIVE,
                "text": f"{reason.text}; {load}: at higher load this may be the load",
            }
        )
    return reason


def production_verdict(
    before: Mapping[str, Reading],
    after: Mapping[str, Reading],
    criteria: Criteria,
    *,
    floors: Mapping[str, float | None] | None = None,
) -> Judgement:
    """C2 once more, on production (spec R5, R6).

    Throughput and cost count in saturated windows only: where either window has no known `throughput_per_gpu`
    the gain is "unverified in production" and the guards alone decide. Guards that only the sandbox can read
    are left to it.

    Args:
        before: production's readings by metric, before the rollout; throughput and cost from saturated
        seconds.
        after: the same after the promotion.
        floors: by how much production differs from week to week, by metric, % (spec B3): a gain must be larger.
            Absent means 0. Guards have none: a wide floor excuses no breach.
    """
    missing = Reading.unknown("not read in production")
    guards: list[Reason] = []
    silent: list[Reason] = []
    for guard in criteria.guards:
        if guard.name not in CANARY_GUARDS:
            continue
        reason = judge_guard(guard, before.get(guard.name, missing), after.get(guard.name, missing), floor_pct=0.0)
        (silent if not guard.required and reason.outcome is Outcome.NO_DATA else guards).append(reason)
    primaries: list[Reason] = []
    for metric in criteria.primary:
        if metric.name not in METRICS or METRICS[metric.name].place == "sandbox":
            continue
        one, two = before.get(metric.name, missing), after.get(metric.name, missing)
        if one.value is None or two.value is None:
            cause = one.cause if one.value is None else two.cause
            silent.append(
                Reason(
                    rule=metric.name,
                    outcome=Outcome.NO_DATA,
                    text=f"{metric.name} is unverified in production: {cause}",
                )
            )
            continue
        primaries.append(judge_primary(metric, one, two, floor_pct=(floors or {}).get(metric.name) or 0.0))
    return judgement([*any_reached(primaries), *guards], silent=silent)
