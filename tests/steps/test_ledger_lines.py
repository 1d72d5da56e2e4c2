"""The lines of plan and approval in the ledger, when the process that owed them was killed."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace

import pytest

from infra.errors import BadInput
from infra.store import ObjectStore
from tasks.campaign import steps
from tasks.canary import approval
from tasks.canary.records import RolloutPlan
from tasks.hypothesis import steps as hypothesis_steps
from tasks.shared.ledger import ledger_prefix
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import LedgerEntry, Target
from tests.rules.arm_readings import HASH, plan
from tests.rules.trial_records import BASELINE, PRODUCTION, verdict


class Killed(BaseException):
    """A SIGKILL: nothing after it is run."""


def kill(*_: object) -> None:
    raise Killed


def entries(store: ObjectStore, target: Target, kind: str) -> list[LedgerEntry]:
    found = [store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(target))]
    return [e for e in found if e.kind == kind]


PIN = CriteriaPin(
    path="criteria.md", commit="c", blob="b", text_hash="t", criteria=PRODUCTION, criteria_hash=HASH, pinned=True
)


@pytest.fixture
def waiting(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> RolloutPlan:
    """A plan of a campaign of its own, with its criteria in S3."""
    monkeypatch.setattr(approval, "open_store", lambda: store)
    name = uuid.uuid4().hex
    store.put_record_once(f"campaigns/{name}/criteria.json", PIN)
    return plan(created_s=time.time() - 60).model_copy(
        update={"campaign": name, "target": Target(model="m", pool=name[:8])}
    )


def test_A1_the_same_answer_again_completes_the_ledger_after_a_kill(
    store: ObjectStore, waiting: RolloutPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(approval, "ledger_key", kill)
        with pytest.raises(Killed):
            approval.decide(waiting, "approve", "Ada")
    assert entries(store, waiting.target, "approval") == []
    first = approval.decide(waiting, "approve", "Ada ")
    assert approval.decide(waiting, "approve", "Ada") == first
    (entry,) = entries(store, waiting.target, "approval")
    assert (entry.at_s, entry.reviewer_s) == (first.at_s, pytest.approx(60, abs=20))


@pytest.mark.parametrize(("decision", "by"), [("reject", "Ada"), ("approve", "Bob")])
def test_S1_another_answer_is_still_refused(waiting: RolloutPlan, decision: str, by: str) -> None:
    approval.decide(waiting, "approve", "Ada")
    with pytest.raises(BadInput, match="decided before: approve by Ada"):
        approval.decide(waiting, decision, by)


def test_S1_the_same_answer_does_not_revive_an_expired_one(
    waiting: RolloutPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = approval.decide(waiting, "approve", "Ada")
    monkeypatch.setattr(approval, "time", SimpleNamespace(time=lambda: made.expires_s))
    with pytest.raises(BadInput, match="decided before"):
        approval.decide(waiting, "approve", "Ada")


def test_A1_a_repeated_campaign_completes_the_plan_s_line(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (steps, hypothesis_steps):
        monkeypatch.setattr(module, "open_store", lambda: store)
    name = uuid.uuid4().hex
    params = SimpleNamespace(campaign=name, target=Target(model="m", pool=name[:8]))
    draft = steps.draft_plan.fn(params, PIN, verdict(), SimpleNamespace(config=BASELINE))
    assert draft is not None
    with monkeypatch.context() as killed:
        killed.setattr(steps, "append_ledger", kill)
        with pytest.raises(Killed):
            steps.keep_plan.fn(params, draft)
    made, key = steps.keep_plan.fn(params, draft)
    assert made is not None and store.get_record(key, RolloutPlan) == made
    later = steps.draft_plan.fn(params, PIN, verdict(), SimpleNamespace(config=BASELINE))
    assert later == made
    assert steps.keep_plan.fn(params, later) == (made, key)
    (entry,) = entries(store, params.target, "plan")
    assert entry.at_s == made.created_s
