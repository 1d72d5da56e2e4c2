"""Everything that S3 knows of one campaign, gathered for the report and for `--json`."""

from __future__ import annotations

from typing import TypeVar

from infra.errors import BadInput
from infra.store import ObjectStore
from tasks.baseline.records import BaselineReport
from tasks.bottleneck.records import BottleneckReport
from tasks.canary.conclusion import concluded
from tasks.canary.records import Approval, CanaryVerdict, RolloutPlan, RolloutState, Verification
from tasks.canary.rollout import TERMINAL
from tasks.hypothesis.records import Hypotheses
from tasks.sandbox.records import SandboxVerdict, TrialResult
from tasks.shared.ledger import ledger_prefix
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import LedgerEntry, Record, Target

_R = TypeVar("_R", bound=Record)


class Story(Record):
    """One campaign from its criteria to its rollout; what did not happen is None."""

    campaign: str
    target: Target
    pin: CriteriaPin
    baseline: BaselineReport | None = None
    bottleneck: BottleneckReport | None = None
    hypotheses: Hypotheses | None = None
    trials: tuple[TrialResult, ...] = ()
    verdict: SandboxVerdict | None = None
    plan: RolloutPlan | None = None
    approval: Approval | None = None
    rollout: RolloutState | None = None
    canary: CanaryVerdict | None = None
    ledger: tuple[LedgerEntry, ...] = ()


def _maybe(store: ObjectStore, key: str, kind: type[_R]) -> _R | None:
    return store.get_record(key, kind) if store.exists(key) else None


def load_story(store: ObjectStore, campaign: str) -> Story:
    """Gather one campaign.

    Raises:
        BadInput: S3 holds no campaign of that name; the message lists some that it does hold.
    """
    root = f"campaigns/{campaign}"
    pin = _maybe(store, f"{root}/criteria.json", CriteriaPin)
    if pin is None:
        known = sorted({i.key.split("/")[1] for i in store.list("campaigns/")})[-5:]
        raise BadInput(
            f"there is no campaign named {campaign}",
            remedy=f"Known: {', '.join(known)}" if known else "No campaign has run yet: `make demo`",
        )
    baseline = _maybe(store, f"{root}/baseline.json", BaselineReport)
    trials = sorted(
        (store.get_record(i.key, TrialResult) for i in store.list(f"{root}/trials/") if i.key.endswith(".json")),
        key=lambda t: t.trial_id,
    )
    plan = _maybe(store, f"{root}/plan.json", RolloutPlan)
    approval = rollout = canary = None
    target = baseline.target if baseline else Target(model="unknown", pool="unknown")
    if plan is not None:
        target = plan.target
        approval = _maybe(store, f"approvals/{plan.content_hash()}.json", Approval)
        folder = f"rollouts/{target.key}/{plan.plan_id}"
        rollout = _maybe(store, f"{folder}/state.json", RolloutState)
        canary = _maybe(store, f"{folder}/verdict.json", CanaryVerdict)
        if canary is None and rollout is not None and rollout.phase in TERMINAL:
            canary = concluded(rollout, _maybe(store, f"{folder}/verification.json", Verification))
    ledger = tuple(store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(target)))
    return Story(
        campaign=campaign,
        target=target,
        pin=pin,
        baseline=baseline,
        bottleneck=_maybe(store, f"{root}/bottleneck.json", BottleneckReport),
        hypotheses=_maybe(store, f"{root}/hypotheses.json", Hypotheses),
        trials=tuple(trials),
        verdict=_maybe(store, f"{root}/verdict.json", SandboxVerdict),
        plan=plan,
        approval=approval,
        rollout=rollout,
        canary=canary,
        ledger=tuple(e for e in ledger if e.campaign == campaign),
    )
