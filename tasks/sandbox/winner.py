"""Which trial wins, and whether every member of a combination earns its place (spec C2, C5). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.hypothesis.records import Scalar
from tasks.sandbox.comparison import THROUGHPUT
from tasks.sandbox.judging import judge_guards, judge_trial, objective
from tasks.sandbox.records import TrialResult
from tasks.shared.outcomes import combine, judgement
from tasks.shared.paired import Estimate, difference
from tasks.shared.records import Criteria, Judgement, ObjectiveWeights, Outcome, OutcomeClass, Reason

PROOFS = frozenset({OutcomeClass.EFFECTIVE, OutcomeClass.NO_EFFECT, OutcomeClass.SIDE_EFFECT, OutcomeClass.REGRESSION})
"""Classes of a trial whose gain may prove a member's share: measured, decided, comparable."""


def pick_winner(trials: Sequence[TrialResult], criteria: Criteria) -> TrialResult | None:
    """The trial that goes to the held-out measurement, or None: then the baseline stays.

    Eligible is what passes C2 (so a hypothesis alone only when it reaches a target by itself), did not give
    wrong outputs, and holds no member that adds nothing. The best rank wins; among ranks closer than the smallest gain
    the one with fewer changes does, then the smaller identifier, so that the order of trials does not matter.
    """
    eligible = [
        (rank, trial)
        for trial in trials
        if trial.outcome_class is OutcomeClass.EFFECTIVE
        and not trial.held_out
        and trial.kind in {"single", "combination"}
        and judge_trial(trial.comparisons, criteria).outcome is Outcome.PASS
        and members_contribute(trial, trials, criteria).outcome is Outcome.PASS
        and (rank := _rank(trial, criteria.weights)) is not None
    ]
    if not eligible:
        return None
    best = max(rank for rank, _ in eligible)
    band = abs(criteria.weights.throughput) * criteria.measuring.smallest_gain_pct / 100
    tied = [(len(trial.changes), -rank, trial.trial_id, trial) for rank, trial in eligible if best - rank <= band]
    return min(tied, key=lambda t: t[:3])[3]


def _rank(trial: TrialResult, weights: ObjectiveWeights) -> float | None:
    if trial.objective is not None:
        return trial.objective if math.isfinite(trial.objective) else None
    return objective(trial.comparisons, weights)


def members_contribute(winner: TrialResult, trials: Sequence[TrialResult], criteria: Criteria) -> Judgement:
    """Whether each member of a combination passes every guard alone, and adds something with confidence when it alone
    is left out (spec C2). Of a pair, leaving one out is the other alone. One change needs no proof.

    Trials are found by their changes, whatever kind they are, whether they passed or not. One that was not measured,
    or not decided, is NO_DATA.
    """
    if len(winner.changes) < 2:
        return Judgement(outcome=Outcome.PASS)
    reasons: list[Reason] = []
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
        added = None if without is None else difference(_ratios(winner), _ratios(without))
        if added is None:
            why = f"the combination without it {_unproven(trials, rest)}" if without is None else "too few pairs"
            text = f"what {knob} adds is unknown: {why}"
            reasons.append(Reason(rule=f"member {knob}", outcome=Outcome.NO_DATA, text=text))
            continue
        outcome = _adds(added, criteria.measuring.smallest_gain_pct)
        word = {Outcome.PASS: "adds", Outcome.FAIL: "adds nothing that counts"}.get(outcome, "cannot be told to add")
        reasons.append(
            Reason(
                rule=f"member {knob}",
                outcome=outcome,
                observed=added.change_pct,
                limit=0.0,
                unit="%",
                text=f"{knob} {word}: {added.text()} against the combination without it",
            )
        )
    return judgement(reasons)


def _adds(added: Estimate, smallest_gain_pct: float) -> Outcome:
    if added.low is not None and added.low > 0:
        return Outcome.PASS
    inside = added.high is not None and added.high <= math.log1p(smallest_gain_pct / 100)
    return Outcome.FAIL if inside else Outcome.INCONCLUSIVE


def _with(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> list[TrialResult]:
    return [t for t in trials if t.changes == changes and t.comparisons and not t.held_out]


def _measured(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> TrialResult | None:
    """The trial of just these changes that proves something."""
    found = _with(trials, changes)
    return next((t for t in found if t.outcome_class in PROOFS), None)


def _unproven(trials: Sequence[TrialResult], changes: dict[str, Scalar]) -> str:
    """Why no trial of these changes proves anything."""
    found = _with(trials, changes)
    if not found:
        return "was not measured"
    how = {f"is {t.outcome_class.value}" for t in found}
    return f"was measured, which proves nothing: {found[0].trial_id} {' or '.join(sorted(how))}"


def _ratios(trial: TrialResult) -> tuple[float, ...]:
    found = trial.comparison(THROUGHPUT)
    return () if found is None else found.log_ratios
