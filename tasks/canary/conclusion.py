"""A rollout's verdict and its line in the ledger, from what is stored alone: whoever makes them makes the same ones.
Pure."""

from __future__ import annotations

from tasks.canary.records import CanaryVerdict, Phase, RolloutState, Verification
from tasks.shared.records import Judgement, LedgerEntry, Outcome, Reason


def concluded(state: RolloutState, verification: Verification | None) -> CanaryVerdict:
    """The verdict of a rollout in a terminal state.

    Args:
        verification: production's readings after the promotion; None where it did not come so far. Their judgement is
            the verdict's when it decided: a pass that somebody rolled back by hand is no pass.
    """
    completed = state.phase is Phase.COMPLETED
    outcome = Outcome.PASS if completed else Outcome.FAIL
    said = Judgement(
        outcome=outcome, reasons=(Reason(rule="rollout", outcome=outcome, text=state.reason or state.phase.value),)
    )
    if verification is not None and (verification.judgement.outcome is Outcome.PASS) is completed:
        said = verification.judgement
    before, after = (verification.before, verification.after) if verification is not None else ({}, {})
    b, a = before.get("throughput_per_gpu"), after.get("throughput_per_gpu")
    change = None
    if b is not None and a is not None and b.value and a.value is not None:
        change = (a.value - b.value) / b.value * 100
    return CanaryVerdict(
        rollout_id=state.rollout_id,
        target=state.plan.target,
        judgement=said,
        phase=state.phase,
        decisions=state.decisions,
        production_before=before,
        production_after=after,
        production_change_pct=change,
        rollback_ms=state.rollback_ms,
    )


def ledger_line(state: RolloutState, verdict: CanaryVerdict, record_key: str) -> LedgerEntry:
    """The ledger's entry of a rollout's end, of the moment when its state became terminal."""
    return LedgerEntry(
        entry_id=f"{state.rollout_id[:12]}-{state.phase.value.replace(' ', '-')}",
        at_s=state.updated_s,
        target=state.plan.target,
        campaign=state.plan.campaign,
        kind="rollout",
        changes=state.plan.changes,
        outcome_class=state.phase.value,
        reason=state.reason,
        # What the sandbox read, so that the pair tells by how much it is optimistic (spec V9).
        throughput_change_pct=state.plan.expected_gain_pct + state.plan.discount_pct,
        production_change_pct=verdict.production_change_pct,
        record_key=record_key,
    )
