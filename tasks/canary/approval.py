"""A person's decision about exactly one plan, written once."""

from __future__ import annotations

import time

from infra.connect import open_store
from infra.errors import BadInput
from tasks.canary.records import Approval, RolloutPlan
from tasks.canary.storage import plan_under
from tasks.shared.ledger import ledger_key
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import LedgerEntry


def load_plan(key: str) -> RolloutPlan:
    """The plan under an S3 key.

    Raises:
        BadInput: there is none.
    """
    return plan_under(open_store(), key)


def describe(plan: RolloutPlan) -> str:
    """What a person must see before deciding."""
    changes = "\n".join(f"  {k}: {plan.baseline_config.args.get(k, 'default')} -> {v}" for k, v in plan.changes.items())
    steps = ", ".join(f"{s.share:.1%} for {s.duration_s:g} s" for s in plan.steps)
    risks = "\n".join(f"  - {r}" for r in plan.risks)
    return (
        f"plan {plan.plan_id[:12]} for {plan.target.key} (campaign {plan.campaign})\n"
        f"configuration hash {plan.config_hash}\nchanges\n{changes}\n"
        f"expected gain {plan.expected_gain_pct:+.1f} % throughput\nrisks\n{risks}\nsteps {steps}"
    )


def same_configuration(plan: RolloutPlan, typed: str) -> None:
    """Proof that the plan was read.

    Raises:
        BadInput: the first 8 characters of the configuration hash were not typed.
    """
    if typed.strip() != plan.config_hash[:8]:
        raise BadInput(f"{typed!r} is not {plan.config_hash[:8]!r}", remedy="Nothing was decided")


def decide(plan: RolloutPlan, decision: str, by: str) -> Approval:
    """Write the decision; it can be written once. The same person's same answer again changes nothing, and completes
    the ledger where a kill kept its line out.

    Raises:
        BadInput: nobody is named, or the plan was decided before: otherwise, by someone else, or too long ago.
    """
    if decision not in ("approve", "reject"):
        raise BadInput(f"{decision!r} is no decision", remedy="Approve or reject; there is no default")
    if not by.strip():
        raise BadInput("a decision names who made it", remedy="--by NAME")
    store, now_s = open_store(), time.time()
    expires_s = store.get_record(f"campaigns/{plan.campaign}/criteria.json", CriteriaPin).criteria.approval_expires_s
    made = Approval(
        plan_hash=plan.content_hash(),
        config_hash=plan.config_hash,
        decision="approve" if decision == "approve" else "reject",
        by=by.strip(),
        at_s=now_s,
        expires_s=now_s + expires_s,
    )
    key = f"approvals/{made.plan_hash}.json"
    if not store.put_record_once(key, made):
        before = store.get_record(key, Approval)
        if (before.decision, before.by) != (made.decision, made.by) or now_s >= before.expires_s:
            raise BadInput(
                f"plan {plan.plan_id[:12]} was decided before: {before.decision} by {before.by}",
                remedy="A plan is decided once; a new campaign makes a new one",
            )
        made = before
    entry = LedgerEntry(
        entry_id=f"{made.plan_hash[:12]}-{made.decision}",
        at_s=made.at_s,
        target=plan.target,
        campaign=plan.campaign,
        kind="approval",
        changes=plan.changes,
        outcome_class=made.decision,
        reason=f"by {made.by}",
        reviewer_s=made.at_s - plan.created_s,
        record_key=key,
    )
    store.put_record_once(ledger_key(entry), entry)
    return made
