"""Stage 4's last word: may the winner go to canary? (spec C2, C3, S2, V6, V12). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.sandbox.judging import judge_trial
from tasks.sandbox.records import TrialResult
from tasks.sandbox.winner import members_contribute
from tasks.shared.outcomes import combine, judgement
from tasks.shared.records import Criteria, Judgement, Outcome, OutcomeClass, Reason

MEASURED = frozenset(
    {
        OutcomeClass.EFFECTIVE,
        OutcomeClass.NO_EFFECT,
        OutcomeClass.SIDE_EFFECT,
        OutcomeClass.REGRESSION,
        OutcomeClass.WRONG_OUTPUT,
    }
)


def sandbox_verdict(
    *,
    criteria: Criteria,
    trials: Sequence[TrialResult],
    winner: TrialResult | None,
    held_out: TrialResult | None,
    pinned: bool,
    shapes_match: bool,
) -> Judgement:
    """The judgement of a campaign's sandbox stage.

    PASS only when a winner exists, each of its members earns its place, and the held-out measurement of the
    same configuration on traffic that the search did not see passes C2 with correct outputs, in a sandbox of
    production's shape, under committed criteria. Unpinned criteria and a shape mismatch never pass.

    Args:
        pinned: the criteria are the committed blob.
        shapes_match: sandbox and production have the same shape, or a stated ratio.
    """
    limits = _conditions(pinned, shapes_match)
    if winner is None:
        measured = [t for t in trials if t.outcome_class in MEASURED]
        classes = ", ".join(sorted({t.outcome_class.value for t in trials})) or "none"
        if measured:
            text = f"none of {len(measured)} measured trials meets the criteria (classes: {classes})"
            return judgement([*limits, Reason(rule="winner", outcome=Outcome.FAIL, text=text)])
        text = f"no trial was measured (classes: {classes})"
        return judgement([*limits, Reason(rule="winner", outcome=Outcome.NO_DATA, text=text)])
    reasons = [*limits, *members_contribute(winner, trials, criteria).reasons]
    if held_out is None:
        reasons.append(
            Reason(
                rule="held_out",
                outcome=Outcome.NO_DATA,
                text=f"{winner.trial_id} was not measured on held-out traffic",
            )
        )
        return judgement(reasons)
    reasons += _same_and_unseen(winner, held_out)
    reasons += _correct(held_out if held_out.correctness is not None else winner)
    judged = judge_trial(held_out.comparisons, criteria)
    if held_out.outcome_class is not OutcomeClass.EFFECTIVE and judged.outcome is Outcome.PASS:
        reasons.append(
            Reason(
                rule="held_out",
                outcome=Outcome.INCONCLUSIVE,
                text=f"the held-out trial is classed {held_out.outcome_class.value}",
            )
        )
    outcome = combine([judged.outcome, *(r.outcome for r in reasons)])
    return Judgement(outcome=outcome, reasons=(*reasons, *judged.reasons))


def _conditions(pinned: bool, shapes_match: bool) -> list[Reason]:
    found = []
    if not pinned:
        found.append(
            Reason(
                rule="unpinned",
                outcome=Outcome.INCONCLUSIVE,
                text="unpinned: the criteria are not the committed file, so nothing can pass by them",
            )
        )
    if not shapes_match:
        found.append(
            Reason(
                rule="unverified",
                outcome=Outcome.INCONCLUSIVE,
                text="unverified: the sandbox is not of production's shape",
            )
        )
    return found


def _same_and_unseen(winner: TrialResult, held_out: TrialResult) -> list[Reason]:
    checks = (
        (held_out.held_out, "the last measurement is not marked as held out"),
        (
            held_out.config_hash == winner.config_hash,
            f"held out was {held_out.config_hash[:12]}, the winner is {winner.config_hash[:12]}",
        ),
        (
            held_out.baseline_hash == winner.baseline_hash,
            f"its baseline is {held_out.baseline_hash[:12]}, the winner's {winner.baseline_hash[:12]}",
        ),
        (
            bool(held_out.sample_hash) and held_out.sample_hash != winner.sample_hash,
            f"the held-out sample {held_out.sample_hash[:12] or '(unnamed)'} is the one that the search saw",
        ),
    )
    return [Reason(rule="held_out", outcome=Outcome.ERROR, text=text) for holds, text in checks if not holds]


def _correct(trial: TrialResult) -> list[Reason]:
    if trial.correctness is None:
        return [Reason(rule="correctness", outcome=Outcome.NO_DATA, text="outputs were not compared")]
    report = trial.correctness
    text = (
        f"{report.equal} of {report.compared} outputs are equal, the baseline agrees with itself in "
        f"{report.baseline_self_equal}; {report.needles_found} of {report.needles_asked} needles found"
    )
    return [Reason(rule="correctness", outcome=report.judgement.outcome, text=text)]
