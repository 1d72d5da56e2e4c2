"""Which trial wins, and whether every member of a combination earns its place (spec C2, C5). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.hypothesis.records import Scalar
from tasks.sandbox.comparison import THROUGHPUT
from tasks.sandbox.judging import (
    judge_guards,
    judge_trial,
    leave_one_out_ok,
    member_contribution_pct,
    objective,
)
from tasks.sandbox.records import TrialResult
from tasks.shared.outcomes import combine, judgement
from tasks.shared.records import Criteria, Judgement, ObjectiveWeights, Outcome, OutcomeClass, Reason

PROOFS = frozenset({OutcomeClass.EFFECTIVE, OutcomeClass.NO_EFFECT, OutcomeClass.SIDE_EFFECT, OutcomeClass.REGRESSION})
"""Classes of a trial whose gain may prove a member's share: measured, steady, comparable."""


def pick_winner(trials: Sequence[TrialResult], criteria: Criteria, *, floor_pct: float | None) -> TrialResult | None:
    """The trial that goes to the held-out measurement, or None: then the baseline stays.

    Eligible is what passes C2 (so a hypothesis alone only when it reaches a target by itself), did not give
    wrong outputs, was measured with every repeat, and holds no member that adds nothing. The best rank wins;
    among ranks closer than the throughput floor the one with fewer changes does, then the smaller identifier, so
    that the order of trials does not matter.

    Args:
        floor_pct: A/A floor of throughput, %; None: no tie can be told from a gain, so the simplest wins.
    """
    eligible = [
        (rank, trial)
        for trial in trials
        if trial.outcome_class is OutcomeClass.EFFECTIVE
        and not trial.held_out
        and trial.kind in {"single", "combination"}
        and not _ended_early(trial)
        and judge_trial(trial.comparisons, criteria).outcome is Outcome.PASS
        and members_contribute(trial, trials, criteria, floor_pct=floor_pct).outcome is Outcome.PASS
        and (rank := _rank(trial, criteria.weights)) is not None
    ]
    if not eligible:
        return None
    best = max(rank for rank, _ in eligible)
    band = math.inf if floor_pct is None else abs(criteria.weights.throughput) * floor_pct / 100
    tied = [(len(trial.changes), -rank, trial.trial_id, trial) for rank, trial in eligible if best - rank <= band]
    return min(tied, key=lambda t: t[:3])[3]


def _rank(trial: TrialResult, weights: ObjectiveWeights) -> float | None:
    if trial.objective is not None:
        return trial.objective if math.isfinite(trial.objective) else None
    return objective(trial.comparisons, weights)


def members_contribute(
    winner: TrialResult,
    trials: Sequence[TrialResult],
    criteria: Criteria,
    *,
    floor_pct: float | None,
) -> Judgement:
    """Whether each member of a combination passes every guard alone, and adds more than the noise floor when
    it alone is left out (spec C2). Of a pair, leaving one out is the other alone. One change needs no proof.

    Trials are found by their changes, whatever kind they are, whether they passed or not. One that was not measured,
    or not steadily and with every repeat, is NO_DATA.
    """
    if len(winner.changes) < 2:
        return Judgement(outcome=Outcome.PASS)
    reasons: list[Reason] = []
    full = _gain(winner)
    for knob, value in winner.changes.items():
        alone = _measured(trials, {knob: value})
        if alone is None:
            text = f"{knob} alone {_unproven(trials, {knob: value})}"
            reasons.append(Reason(rule=f"member {knob}", outcome=Outcome.NO_DATA, text=text))
        else:
            guards = combine(r.outcome for r in judge_guards(alone.comparisons, criteria)[0])
            reasons.append(
                Reason(
                    rule=f"member {knob}",
                    outcome=guards,
                    text=f"guards of {knob}={value} alone: {guards.value}",
                )
            )
        rest = {k: v for k, v in winner.changes.items() if k != knob}
        without = _measured(trials, rest)
        left = None if without is None else _gain(without)
        if full is None or left is None or floor_pct is None:
            known = "a gain or the A/A floor is not known"
            why = f"the combination without it {_unproven(trials, rest)}" if without is None else known
            text = f"what {knob} adds is unknown: {why}"
            reasons.append(Reason(rule=f"member {knob}", outcome=Outcome.NO_DATA, text=text))
            continue
        added = member_contribution_pct(full, left)
        outcome = Outcome.PASS if leave_one_out_ok(full, left, floor_pct) else Outcome.FAIL
        size = "nothing that can be computed" if added is None else f"{added:+.1f} %"
        reasons.append(
            Reason(
                rule=f"member {knob}",
                outcome=outcome,
                observed=added,
                limit=floor_pct,
                unit="%",
                text=f"{knob} adds {size} ({full:+.1f} % with it, {left:+.1f} % without); "
                f"the A/A floor is {floor_pct:.1f} %",
            )
        )
    return judgement(reasons)


def _with(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> list[TrialResult]:
    return [t for t in trials if t.changes == changes and t.comparisons and not t.held_out]


def _ended_early(trial: TrialResult) -> bool:
    return any(r.rule == "repeats" for r in trial.judgement.reasons)


def _measured(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> TrialResult | None:
    """The trial of just these changes that proves something."""
    found = _with(trials, changes)
    return next((t for t in found if t.outcome_class in PROOFS and not _ended_early(t)), None)


def _unproven(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> str:
    """Why no trial of these changes proves anything."""
    found = _with(trials, changes)
    if not found:
        return "was not measured"
    early = "ended before all its repeats"
    how = {early if t.outcome_class in PROOFS else f"is {t.outcome_class.value}" for t in found}
    return f"was measured, which proves nothing: {found[0].trial_id} {' or '.join(sorted(how))}"


def _gain(trial: TrialResult) -> float | None:
    found = trial.comparison(THROUGHPUT)
    return None if found is None else found.change_pct
