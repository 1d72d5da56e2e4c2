"""One trial: judged by the criteria, classed, ranked (spec C2, C5, V8). Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from tasks.sandbox.comparison import THROUGHPUT
from tasks.sandbox.records import CorrectnessReport, MetricComparison
from tasks.shared.limits import any_reached, beyond_floor, judge_guard, judge_primary
from tasks.shared.outcomes import combine, judgement
from tasks.shared.records import (
    Criteria,
    GuardMetric,
    Judgement,
    ObjectiveWeights,
    Outcome,
    OutcomeClass,
    Reading,
    Reason,
)

DEFAULT_DISCOUNT_PCT = 2.5
"""Sandbox gains run about 2 to 3 points optimistic (spec V9); used until the ledger knows better."""

FEWEST_PAIRS = 3
"""Pairs of sandbox and production gains from which the ledger is believed instead."""

REFUSALS = frozenset({"error_rate", "coverage", "oom_count"})
"""Guards on what was not served. A load under which nothing was served has no valid run, and that is its result."""

ENGINE_CLASSES: dict[str, OutcomeClass] = {
    "invalid_configuration": OutcomeClass.INVALID_CONFIGURATION,
    "invalid_config": OutcomeClass.INVALID_CONFIGURATION,
    "oom_start": OutcomeClass.INFEASIBLE,
    "oom_load": OutcomeClass.INFEASIBLE,
    "host_kill": OutcomeClass.INFEASIBLE,
    "engine_dead": OutcomeClass.INFEASIBLE,
    "other": OutcomeClass.INFEASIBLE,
}
"""How an engine failed, as a class. Whatever partial numbers it left are no measurement (case EN6). A failure
that is not listed says nothing about the configuration: the trial was not run (case EN3)."""


def widened(guard: GuardMetric, floor_pct: float | None) -> GuardMetric:
    """The guard with its A/A floor as its limit, where the floor is wider and the criteria let it widen so far."""
    limit, most = guard.max_increase_pct, guard.widens_to_pct
    if limit is None or most is None or floor_pct is None or not limit < floor_pct <= most:
        return guard
    return guard.model_copy(update={"max_increase_pct": floor_pct})


def judge_guards(comparisons: Sequence[MetricComparison], criteria: Criteria) -> tuple[list[Reason], list[Reason]]:
    """Every guard judged: (those that decide, optional ones without data, which decide nothing)."""
    deciding: list[Reason] = []
    silent: list[Reason] = []
    by_name = {c.metric: c for c in comparisons}
    for guard in criteria.guards:
        found = by_name.get(guard.name)
        missing = Reading.unknown("it was not measured")
        floor_pct = found.floor_pct if found else None
        reason = judge_guard(
            widened(guard, floor_pct),
            found.baseline if found else missing,
            found.candidate if found else missing,
            floor_pct=floor_pct,
        )
        optional = not guard.required and reason.outcome is Outcome.NO_DATA
        (silent if optional else deciding).append(reason)
    return deciding, silent


def judge_trial(comparisons: Sequence[MetricComparison], criteria: Criteria) -> Judgement:
    """C2: PASS only if at least one primary metric reaches its target and every guard is inside its limit.

    The best primary metric speaks for all of them; the guards speak each for itself. Missing or marked
    readings never pass. A combination is judged by this against the campaign's first baseline.
    """
    by_name = {c.metric: c for c in comparisons}
    primaries: list[Reason] = []
    for metric in criteria.primary:
        found = by_name.get(metric.name)
        if found is None:
            primaries.append(Reason(rule=metric.name, outcome=Outcome.NO_DATA, text=f"{metric.name} was not measured"))
        else:
            primaries.append(
                judge_primary(
                    metric,
                    found.baseline,
                    found.candidate,
                    floor_pct=found.floor_pct,
                    low_pct=found.low_pct,
                    high_pct=found.high_pct,
                )
            )
    guards, silent = judge_guards(comparisons, criteria)
    return judgement([*any_reached(primaries), *guards], silent=silent)


def judge_single(comparisons: Sequence[MetricComparison], criteria: Criteria) -> Judgement:
    """Whether one hypothesis may join a combination: some primary metric improves by more than its A/A floor
    and every guard holds. The target is for the adopted combination alone (spec C2)."""
    by_name = {c.metric: c for c in comparisons}
    reasons: list[Reason] = []
    for metric in criteria.primary:
        found = by_name.get(metric.name)
        if found is None or found.baseline.value is None or found.candidate.value is None:
            reasons.append(Reason(rule=metric.name, outcome=Outcome.NO_DATA, text=f"{metric.name} was not measured"))
            continue
        moved = (
            None
            if not (found.baseline.judges and found.candidate.judges)
            else beyond_floor(metric.direction, found.change_pct, found.floor_pct, found.low_pct, found.high_pct)
        )
        outcome = Outcome.INCONCLUSIVE if moved is None else Outcome.PASS if moved > 0 else Outcome.FAIL
        size = "unknown" if found.change_pct is None else f"{found.change_pct:+.1f} %"
        floor = "unknown" if found.floor_pct is None else f"{found.floor_pct:.1f} %"
        word = {None: "cannot be told", 1: "better", 0: "no change that can be told from noise", -1: "worse"}[moved]
        interval = ""
        if found.low_pct is not None and found.high_pct is not None:
            interval = f", 95 % interval {found.low_pct:+.1f} to {found.high_pct:+.1f} %"
        reasons.append(
            Reason(
                rule=metric.name,
                outcome=outcome,
                observed=found.change_pct,
                limit=found.floor_pct,
                unit="%",
                text=f"{metric.name} is {found.candidate.text()} against "
                f"{found.baseline.text()}: {size}{interval}, A/A floor {floor}: {word}",
            )
        )
    guards, silent = judge_guards(comparisons, criteria)
    return judgement([*any_reached(reasons), *guards], silent=silent)


def classify(  # noqa: PLR0911, PLR0912 - one return a class, in the order of the docstring
    *,
    engine_outcome: str,
    comparisons: Sequence[MetricComparison],
    criteria: Criteria,
    kind: Literal["single", "combination", "leave_one_out", "held_out", "a_a"] = "single",
    correctness: CorrectnessReport | None = None,
    unstable_reasons: Sequence[str] = (),
    cache: Judgement | None = None,
    more_guards: Sequence[Reason] = (),
    shapes_match: bool = True,
) -> OutcomeClass:
    """The class of a trial (spec V8); the first that applies.

    invalid configuration, infeasible, not run: the engine did not serve a measurement. unverified: the
    sandbox is not of production's shape, or a required reading or the cache comparison is missing. wrong
    output: correctness failed. regression or side effect: requests were refused or failed, or memory ran out,
    which is no matter of noise. unstable: the runs spread too far, or a guard could not be resolved from
    noise. effective: the trial's judgement passes (`judge_single` for a hypothesis alone, `judge_trial` for a
    combination) and `more_guards` hold. side effect: better, and a guard is breached. regression: worse, or a
    guard is breached without a gain. no effect: the rest.
    """
    if engine_outcome != "measured":
        return ENGINE_CLASSES.get(engine_outcome, OutcomeClass.NOT_RUN)
    if not comparisons:
        return OutcomeClass.NOT_RUN
    if not shapes_match:
        return OutcomeClass.UNVERIFIED
    if correctness is not None and correctness.judgement.outcome is Outcome.FAIL:
        return OutcomeClass.WRONG_OUTPUT
    deciding = judge_guards(comparisons, criteria)[0]
    moves = _moves(comparisons, criteria)
    better, worse = any(m == 1 for m in moves), any(m == -1 for m in moves)
    if any(r.rule in REFUSALS and r.outcome is Outcome.FAIL for r in deciding):
        return OutcomeClass.SIDE_EFFECT if better else OutcomeClass.REGRESSION
    if unstable_reasons:
        return OutcomeClass.UNSTABLE
    if cache is not None and cache.outcome is not Outcome.PASS:
        return OutcomeClass.UNVERIFIED
    guards = combine(r.outcome for r in (*deciding, *more_guards))
    if guards is Outcome.FAIL:
        return OutcomeClass.SIDE_EFFECT if better else OutcomeClass.REGRESSION
    if worse and not better:
        return OutcomeClass.REGRESSION
    if guards in {Outcome.NO_DATA, Outcome.ERROR} or all(m is None for m in moves):
        return OutcomeClass.UNVERIFIED
    if not better:
        return OutcomeClass.NO_EFFECT
    if guards is Outcome.INCONCLUSIVE:
        return OutcomeClass.UNSTABLE
    whole = judge_trial if kind in {"combination", "held_out"} else judge_single
    outcome = whole(comparisons, criteria).outcome
    if outcome is Outcome.INCONCLUSIVE:
        return OutcomeClass.UNSTABLE
    return OutcomeClass.EFFECTIVE if outcome is Outcome.PASS else OutcomeClass.NO_EFFECT


def _moves(comparisons: Sequence[MetricComparison], criteria: Criteria) -> list[int | None]:
    by_name = {c.metric: c for c in comparisons}
    return [
        beyond_floor(m.direction, c.change_pct, c.floor_pct, c.low_pct, c.high_pct)
        if (c := by_name.get(m.name)) is not None and c.baseline.judges and c.candidate.judges
        else None
        for m in criteria.primary
    ]


def predicted_combination_pct(gains_pct: Iterable[float]) -> float | None:
    """What single gains would give together if they were independent: their product, %; None of nothing."""
    gains = list(gains_pct)
    if not gains:
        return None
    return (math.prod(1 + gain / 100 for gain in gains) - 1) * 100


def synergy_pct(measured_pct: float | None, predicted_pct: float | None) -> float | None:
    """Measured minus predicted, percentage points (spec V7)."""
    return None if measured_pct is None or predicted_pct is None else measured_pct - predicted_pct


def member_contribution_pct(full_pct: float, without_pct: float) -> float | None:
    """What a member adds to the combination without it, %; both gains are against the same baseline."""
    rest = 1 + without_pct / 100
    return ((1 + full_pct / 100) / rest - 1) * 100 if rest > 0 else None


def leave_one_out_ok(full_pct: float | None, without_pct: float | None, floor_pct: float | None) -> bool:
    """Whether a member adds more than the noise floor when it alone is left out (spec C2, last sentence).

    False when anything is unknown: what was not measured is not adopted.
    """
    if full_pct is None or without_pct is None or floor_pct is None:
        return False
    added = member_contribution_pct(full_pct, without_pct)
    return added is not None and added > floor_pct


def objective(
    comparisons: Sequence[MetricComparison],
    weights: ObjectiveWeights,
    *,
    memory_limit_bytes: float | None = None,
) -> float | None:
    """Rank inside the search (spec C5): w1*throughput - w2*ttft_p99 - w3*tpot_p99 - w4*memory_penalty.

    Each term is a change relative to the baseline, as a fraction. The memory penalty is the share of
    `memory_limit_bytes` above the weights' threshold, over the room above it; where no limit is known there
    is no threshold to pass and no penalty. None when a weighted term is unknown or not finite: such a trial
    has no rank.
    """
    by_name = {c.metric: c for c in comparisons}
    total = 0.0
    for name, weight in (
        (THROUGHPUT, weights.throughput),
        ("ttft_p99", -weights.ttft_p99),
        ("tpot_p99", -weights.tpot_p99),
    ):
        if weight == 0:
            continue
        found = by_name.get(name)
        if found is None or found.change_pct is None or not math.isfinite(found.change_pct):
            return None
        total += weight * found.change_pct / 100
    if memory_limit_bytes is not None and weights.memory_penalty:
        found = by_name.get("peak_memory")
        if found is None or found.candidate.value is None or memory_limit_bytes <= 0:
            return None
        over = found.candidate.value / memory_limit_bytes - weights.memory_threshold
        total -= weights.memory_penalty * max(0.0, over / max(1 - weights.memory_threshold, 1e-6))
    return total if math.isfinite(total) else None


def sandbox_discount_pct(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    """How much too optimistic the sandbox runs, percentage points (spec V9).

    The median of sandbox minus production gain over the ledger's pairs, never below 0: a sandbox that once
    was too modest earns no bonus. 2.5 until there are three pairs.
    """
    known = [sandbox - production for sandbox, production in pairs if sandbox is not None and production is not None]
    return DEFAULT_DISCOUNT_PCT if len(known) < FEWEST_PAIRS else max(0.0, statistics.median(known))
