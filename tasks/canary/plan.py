"""From a passing verdict to a plan, and from a person's answer to a permission (spec S1 to S3). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from infra.engine.config import ServingConfig
from infra.errors import BadInput
from tasks.canary.records import Approval, RolloutPlan
from tasks.sandbox.records import SandboxVerdict, TrialResult
from tasks.shared.criteria import criteria_hash as hash_of
from tasks.shared.outcomes import judgement
from tasks.shared.records import Criteria, Judgement, Outcome, OutcomeClass, Reason

DEFAULT_DISCOUNT_PCT = 2.5
"""Sandbox gains run 2 to 3 points optimistic (spec V9); the caller passes what the ledger has learned."""

CLOSE_TO_LIMIT = 0.5
"""A guard that used more than this share of what it is allowed is told to the approver as a risk."""

CLOCK_SKEW_S = 60.0
"""How far the clocks of the machines that plan, approve and roll out may lie apart."""


def rollout_plan(
    verdict: SandboxVerdict,
    criteria: Criteria,
    criteria_hash: str,
    *,
    baseline_config: ServingConfig,
    created_s: float,
    discount_pct: float = DEFAULT_DISCOUNT_PCT,
) -> RolloutPlan:
    """What a person is asked to approve. The same verdict always gives the same `plan_id`.

    Args:
        criteria_hash: as pinned at the campaign's start.
        baseline_config: what production serves with now, and what a rollback goes back to.
        created_s: seconds since the epoch.
        discount_pct: percentage points taken off the held-out gain (spec V9).

    Raises:
        BadInput: the verdict does not pass, is unpinned or unverified, lacks its held-out trial, or a hash of
            criteria, configuration or baseline does not agree; the message names every fault.
    """
    trial = verdict.held_out
    faults = list(_faults(verdict, criteria, criteria_hash, baseline_config))
    if faults or trial is None:
        raise BadInput(
            f"no rollout plan for campaign {verdict.campaign}: {'; '.join(faults)}",
            remedy="Only a passing verdict under the pinned criteria can be rolled out",
        )
    verdict_hash = verdict.content_hash()
    identity = f"{verdict_hash}:{trial.config_hash}:{trial.baseline_hash}"
    change = trial.comparison("throughput_per_gpu")
    gain = change.change_pct if change is not None and change.change_pct is not None else 0.0
    return RolloutPlan(
        plan_id=hashlib.sha256(identity.encode()).hexdigest(),
        target=verdict.target,
        campaign=verdict.campaign,
        config=trial.config,
        config_hash=trial.config_hash,
        baseline_config=baseline_config,
        baseline_hash=trial.baseline_hash,
        changes=dict(trial.changes),
        criteria_hash=criteria_hash,
        verdict_hash=verdict_hash,
        expected_gain_pct=gain - discount_pct,
        discount_pct=discount_pct,
        risks=tuple(_risks(verdict, trial, discount_pct)),
        steps=criteria.canary_steps,
        created_s=created_s,
    )


def _faults(
    verdict: SandboxVerdict,
    criteria: Criteria,
    criteria_hash: str,
    baseline_config: ServingConfig,
) -> Sequence[str]:
    found = []
    if verdict.judgement.outcome is not Outcome.PASS:
        found.append(f"its verdict is {verdict.judgement.outcome.value}")
    if not verdict.pinned:
        found.append("its criteria were not the committed ones (unpinned)")
    if verdict.criteria_hash != criteria_hash:
        found.append(f"it was judged by criteria {verdict.criteria_hash[:12]}, pinned are {criteria_hash[:12]}")
    if hash_of(criteria) != criteria_hash:
        found.append(f"the criteria given hash to {hash_of(criteria)[:12]}, pinned are {criteria_hash[:12]}")
    trial, winner = verdict.held_out, verdict.winner
    if trial is None or winner is None:
        return [*found, "it has no winner measured on held-out traffic"]
    if trial.outcome_class is not OutcomeClass.EFFECTIVE:
        found.append(f"the held-out trial is {trial.outcome_class.value}")
    if winner.outcome_class is OutcomeClass.UNVERIFIED:
        found.append("the winner is unverified")
    if not trial.held_out:
        found.append("the last trial was not on held-out traffic")
    if not trial.changes:
        found.append("nothing changes")
    for what, one, two in (
        ("the configuration", trial.config.config_hash(), trial.config_hash),
        ("the held-out configuration", trial.config_hash, winner.config_hash),
        ("the baseline", baseline_config.config_hash(), trial.baseline_hash),
    ):
        if one != two:
            found.append(f"{what} hashes to {one[:12]}, measured was {two[:12]}")
    return found


def _risks(verdict: SandboxVerdict, trial: TrialResult, discount_pct: float) -> list[str]:
    risks = []
    for reason in verdict.judgement.reasons:
        if (
            reason.observed is not None
            and reason.limit
            and 0 < CLOSE_TO_LIMIT * reason.limit < reason.observed <= (reason.limit)
            and reason.rule in {c.metric for c in trial.comparisons}
        ):
            risks.append(f"close to its limit: {reason.text}")
    risks.append(f"the sandbox runs {discount_pct:.1f} points optimistic, which is already taken off the gain")
    if len(trial.changes) > 1:
        risks.append(f"{len(trial.changes)} switches change together: {', '.join(sorted(trial.changes))}")
    return risks


def approval_valid(plan: RolloutPlan, approval: Approval | None, now_s: float) -> Judgement:
    """Whether this plan may start now. Only an unexpired yes to exactly this plan passes.

    Plan, approval and rollout may come from three machines: an approval may lie up to CLOCK_SKEW_S before the plan or
    ahead of now. Its end is not stretched.

    Args:
        now_s: seconds since the epoch; `approval.expires_s` is on the same clock, not a duration.
    """
    if approval is None:
        return judgement(
            [
                Reason(
                    rule="approval",
                    outcome=Outcome.NO_DATA,
                    text=f"plan {plan.plan_id[:12]} waits for approval",
                )
            ]
        )
    plan_hash = plan.content_hash()
    checks = (
        ("approval", approval.decision == "approve", f"{approval.by} rejected the plan"),
        ("approval", bool(approval.by.strip()), "the approval names nobody"),
        (
            "plan_hash",
            approval.plan_hash == plan_hash,
            f"the approval is for plan {approval.plan_hash[:12]}, this one hashes to {plan_hash[:12]}",
        ),
        (
            "config_hash",
            approval.config_hash == plan.config_hash,
            f"approved was configuration {approval.config_hash[:12]}, the plan's is {plan.config_hash[:12]}",
        ),
        (
            "expiry",
            now_s < approval.expires_s,
            f"the approval expired {now_s - approval.expires_s:,.0f} s ago",
        ),
        (
            "time",
            plan.created_s - CLOCK_SKEW_S <= approval.at_s <= now_s + CLOCK_SKEW_S,
            f"the approval ({approval.at_s:.0f}) is not between the plan ({plan.created_s:.0f}) and now ({now_s:.0f})",
        ),
    )
    bad = [Reason(rule=rule, outcome=Outcome.FAIL, text=text) for rule, holds, text in checks if not holds]
    yes = Reason(rule="approval", outcome=Outcome.PASS, text=f"approved by {approval.by}")
    return judgement(bad or [yes])
