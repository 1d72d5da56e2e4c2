"""One trial: judged by the criteria, classed, ranked (spec C2, C5, V8). Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from tasks.sandbox.comparison import THROUGHPUT
from tasks.sandbox.records import CorrectnessReport, MetricComparison
from tasks.shared.limits import any_reached, judge_guard, unusable
from tasks.shared.outcomes import combine, judgement
from tasks.shared.paired import Effect, effect_of, pairs_to_decide, reaches, within
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

FEWEST_GAINS = 3
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


def judge_guards(comparisons: Sequence[MetricComparison], criteria: Criteria) -> tuple[list[Reason], list[Reason]]:
    """Every guard judged: (those that decide, optional ones without data, which decide nothing)."""
    deciding: list[Reason] = []
    silent: list[Reason] = []
    by_name = {c.metric: c for c in comparisons}
    missing = Reading.unknown("it was not measured")
    for guard in criteria.guards:
        found = by_name.get(guard.name)
        if found is not None and found.paired and guard.max_increase_pct is not None:
            reason = _paired_guard(guard, guard.max_increase_pct, found)
        else:
            one, two = (found.baseline, found.candidate) if found else (missing, missing)
            reason = judge_guard(guard, one, two, floor_pct=0.0)
        optional = not guard.required and reason.outcome is Outcome.NO_DATA
        (silent if optional else deciding).append(reason)
    return deciding, silent


def _paired_guard(guard: GuardMetric, limit_pct: float, found: MetricComparison) -> Reason:
    """Breached when the whole interval is beyond the limit, kept when it is inside, held back when it straddles it."""
    if (lacking := unusable(guard.name, (found.baseline, found.candidate))) is not None:
        return lacking
    outcome = within(found.estimate, limit_pct, direction=guard.direction)
    worse = "more" if guard.direction == "lower" else "less"
    word = {Outcome.PASS: "inside", Outcome.FAIL: "beyond"}.get(outcome, "not told from")
    return Reason(
        rule=guard.name,
        outcome=outcome,
        observed=found.change_pct,
        limit=limit_pct,
        unit="%",
        text=f"{_quoted(found)}: {word} the limit of {limit_pct:g} % {worse}",
    )


def _quoted(found: MetricComparison) -> str:
    """Both readings, the ratio with its interval, the pairs and the design."""
    ratio = "no pair is whole" if found.estimate is None else found.estimate.text()
    design = f", {found.design}" if found.design else ""
    return f"{found.metric} is {found.candidate.text()} against {found.baseline.text()}: {ratio}{design}"


def judge_trial(comparisons: Sequence[MetricComparison], criteria: Criteria) -> Judgement:
    """C2: PASS only if at least one primary metric reaches its target and every guard is inside its limit, each with
    its whole interval.

    The best primary metric speaks for all of them; the guards speak each for itself. Missing or marked
    readings never pass. A combination is judged by this against the campaign's first baseline.
    """
    by_name = {c.metric: c for c in comparisons}
    primaries: list[Reason] = []
    for metric in criteria.primary:
        found = by_name.get(metric.name)
        if found is None:
            primaries.append(Reason(rule=metric.name, outcome=Outcome.NO_DATA, text=f"{metric.name} was not measured"))
        elif (lacking := unusable(metric.name, (found.baseline, found.candidate))) is not None:
            primaries.append(lacking)
        else:
            outcome = reaches(found.estimate, metric.target_pct) if found.baseline.value else Outcome.NO_DATA
            word = {Outcome.PASS: "reached", Outcome.FAIL: "missed"}.get(outcome, "not decided")
            primaries.append(
                Reason(
                    rule=metric.name,
                    outcome=outcome,
                    observed=found.change_pct,
                    limit=metric.target_pct,
                    unit="%",
                    text=f"{_quoted(found)}: target {metric.target_pct:+g} % {word}",
                )
            )
    guards, silent = judge_guards(comparisons, criteria)
    return judgement([*_any_reached(primaries), *guards], silent=silent)


def judge_single(comparisons: Sequence[MetricComparison], criteria: Criteria) -> Judgement:
    """Whether one hypothesis may join a combination: some primary metric is effective and every guard holds. The target
    is for the adopted combination alone (spec C2)."""
    by_name = {c.metric: c for c in comparisons}
    gain_pct = criteria.measuring.smallest_gain_pct
    reasons: list[Reason] = []
    for metric in criteria.primary:
        found = by_name.get(metric.name)
        if found is None or found.baseline.value is None or found.candidate.value is None:
            reasons.append(Reason(rule=metric.name, outcome=Outcome.NO_DATA, text=f"{metric.name} was not measured"))
        elif (lacking := unusable(metric.name, (found.baseline, found.candidate))) is not None:
            reasons.append(lacking)
        else:
            effect = effect_of(found.estimate, gain_pct, direction=metric.direction)
            outcome = {"effective": Outcome.PASS, "unstable": Outcome.INCONCLUSIVE}.get(effect, Outcome.FAIL)
            reasons.append(
                Reason(
                    rule=metric.name,
                    outcome=outcome,
                    observed=found.change_pct,
                    limit=gain_pct,
                    unit="%",
                    text=f"{_quoted(found)}: {effect}{_would_take(found, gain_pct) if effect == 'unstable' else ''}, "
                    f"smallest gain {gain_pct:g} %",
                )
            )
    guards, silent = judge_guards(comparisons, criteria)
    return judgement([*_any_reached(reasons), *guards], silent=silent)


def _any_reached(primaries: Sequence[Reason]) -> list[Reason]:
    """One reached target is enough, so while one is not decided those that were missed decide nothing."""
    waiting = [r for r in primaries if r.outcome is Outcome.INCONCLUSIVE]
    reached = any(r.outcome is Outcome.PASS for r in primaries)
    return waiting if waiting and not reached else any_reached(primaries)


def _would_take(found: MetricComparison, gain_pct: float) -> str:
    pairs = None if found.estimate is None else pairs_to_decide(found.estimate, gain_pct)
    return "" if pairs is None else f" (about {pairs} pairs would decide it)"


def effects(comparisons: Sequence[MetricComparison], criteria: Criteria) -> list[Effect | None]:
    """What became of each primary metric; None where a reading is unknown or marked."""
    by_name = {c.metric: c for c in comparisons}
    return [
        effect_of(c.estimate, criteria.measuring.smallest_gain_pct, direction=m.direction)
        if (c := by_name.get(m.name)) is not None and c.baseline.judges and c.candidate.judges
        else None
        for m in criteria.primary
    ]


def classify(  # noqa: PLR0911, PLR0912 - one return a class, in the order of the docstring
    *,
    engine_outcome: str,
    comparisons: Sequence[MetricComparison],
    criteria: Criteria,
    kind: Literal["single", "combination", "leave_one_out", "held_out", "a_a"] = "single",
    correctness: CorrectnessReport | None = None,
    cache: Judgement | None = None,
    more_guards: Sequence[Reason] = (),
    shapes_match: bool = True,
) -> OutcomeClass:
    """The class of a trial (spec V8); the first that applies.

    invalid configuration, infeasible, not run: the engine did not serve a measurement. unverified: the sandbox is not
    of production's shape, or a required reading or the cache comparison is missing. wrong output: correctness failed.
    regression or side effect: requests were refused or failed, or memory ran out, which is no matter of noise. side
    effect: better, and a guard is breached. regression: worse with confidence, or a guard is breached without a gain.
    no effect, unstable: what the interval says, or a guard that it straddles. effective: the trial's judgement passes
    (`judge_single` for a hypothesis alone, `judge_trial` for a combination) and `more_guards` hold.
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
    became = effects(comparisons, criteria)
    better, worse = "effective" in became, "regression" in became
    if any(r.rule in REFUSALS and r.outcome is Outcome.FAIL for r in deciding):
        return OutcomeClass.SIDE_EFFECT if better else OutcomeClass.REGRESSION
    if cache is not None and cache.outcome is not Outcome.PASS:
        return OutcomeClass.UNVERIFIED
    guards = combine(r.outcome for r in (*deciding, *more_guards))
    if guards is Outcome.FAIL:
        return OutcomeClass.SIDE_EFFECT if better else OutcomeClass.REGRESSION
    if worse and not better:
        return OutcomeClass.REGRESSION
    if all(effect is None for effect in became):
        return OutcomeClass.UNVERIFIED
    if not better:  # its latencies need not have been measured
        return OutcomeClass.UNSTABLE if "unstable" in became else OutcomeClass.NO_EFFECT
    if guards in {Outcome.NO_DATA, Outcome.ERROR}:
        return OutcomeClass.UNVERIFIED
    if guards is Outcome.INCONCLUSIVE:
        return OutcomeClass.UNSTABLE
    whole = judge_trial if kind in {"combination", "held_out"} else judge_single
    outcome = whole(comparisons, criteria).outcome
    if outcome is Outcome.INCONCLUSIVE:
        return OutcomeClass.UNSTABLE
    return OutcomeClass.EFFECTIVE if outcome is Outcome.PASS else OutcomeClass.NO_EFFECT


def predicted_combination_pct(gains_pct: Iterable[float]) -> float | None:
    """What single gains would give together if they were independent: their product, %; None of nothing."""
    gains = list(gains_pct)
    if not gains:
        return None
    return (math.prod(1 + gain / 100 for gain in gains) - 1) * 100


def synergy_pct(measured_pct: float | None, predicted_pct: float | None) -> float | None:
    """Measured minus predicted, percentage points (spec V7)."""
    return None if measured_pct is None or predicted_pct is None else measured_pct - predicted_pct


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
    return DEFAULT_DISCOUNT_PCT if len(known) < FEWEST_GAINS else max(0.0, statistics.median(known))
