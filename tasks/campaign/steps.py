"""Effects around the stages: pinning, questions, lease, plan, ledger."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import task

from infra.connect import open_store
from infra.errors import RatchetError
from infra.lease import Lease, LeaseLost
from infra.quality.runner import run_gate
from infra.quality.suite import GateResult
from infra.revision import committed_file, text_hash
from tasks.baseline.records import BaselineReport
from tasks.canary.gates import PLAN, VERDICT, plan_rows, verdict_rows
from tasks.canary.plan import rollout_plan
from tasks.canary.records import Phase, RolloutPlan
from tasks.canary.rollout import TERMINAL
from tasks.canary.storage import rollouts_of
from tasks.hypothesis.steps import recall
from tasks.sandbox.records import SandboxVerdict
from tasks.sandbox.rules import sandbox_discount_pct
from tasks.shared.criteria import criteria_hash, parse_criteria
from tasks.shared.ledger import ledger_key
from tasks.shared.parameters import CampaignParams
from tasks.shared.pin import CriteriaPin, Preconditions
from tasks.shared.preconditions import Measured, judge_preconditions
from tasks.shared.records import LedgerEntry, Outcome, Target
from tasks.shared.stops import CriteriaChanged, PreconditionFailed

LEASE_TTL_S = 120.0
LOG = logging.getLogger("ratchet.campaign")


def owner_name() -> str:
    """Who holds a lease: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def campaign_lease(target: Target, campaign: str, ttl_s: float = LEASE_TTL_S) -> Iterator[Lease]:
    """Hold the target's campaign lease and keep it alive; two campaigns of one target do not run side by side.

    A killed campaign's lease runs out within `ttl_s`, so that its rerun can resume. A campaign that finds its lease
    lost ends itself, and its engines with it, before another one measures beside it (case OR5).

    Raises:
        LeaseHeld: another campaign holds it.
    """
    store = open_store()
    owner = f"{campaign} {owner_name()}"
    lease = Lease.acquire(store, f"campaign/{target.key}", owner=owner, ttl_s=ttl_s, now=time.time())
    ended = threading.Event()
    keeper = threading.Thread(target=_keep_alive, args=(lease, ttl_s, ended), name="campaign lease", daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        ended.set()
        keeper.join(timeout=10)
        lease.release()


def _keep_alive(lease: Lease, ttl_s: float, ended: threading.Event) -> None:
    while not ended.wait(ttl_s / 4):
        try:
            lease.renew(time.time())
        except LeaseLost as lost:
            LOG.error("the campaign ends: %s", lost)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except RatchetError as error:
            # The store is away. Should the lease run out meanwhile, the next renewal says so.
            LOG.warning("the campaign's lease could not be renewed: %s", error)


@task(name="pin criteria", retries=0)
def pin_criteria(campaign: str, criteria_path: str) -> CriteriaPin:
    """Read the criteria at HEAD and write the pin once; a resumed campaign must find the same.

    Raises:
        BadInput: the file is not committed, or does not parse; the message says where.
        CriteriaChanged: the campaign was started with other criteria.
    """
    found = committed_file(Path(criteria_path))
    criteria = parse_criteria(found.text, origin=f"{found.path} at {found.commit[:12]}")
    pin = CriteriaPin(
        path=str(Path(criteria_path)),
        commit=found.commit,
        blob=found.blob,
        text_hash=text_hash(found.text),
        criteria=criteria,
        criteria_hash=criteria_hash(criteria),
        pinned=True,
    )
    store = open_store()
    key = f"campaigns/{campaign}/criteria.json"
    if not store.put_record_once(key, pin):
        before = store.get_record(key, CriteriaPin)
        if before.criteria_hash != pin.criteria_hash:
            raise CriteriaChanged(
                f"campaign {campaign} was started with criteria {before.criteria_hash[:12]} and "
                f"HEAD now holds {pin.criteria_hash[:12]}",
                remedy="Start a new campaign",
            )
        return before
    return pin


def pin_round(campaign: str, pin: CriteriaPin) -> None:
    """A further round is judged, approved and rolled out by the criteria of its campaign."""
    open_store().put_record_once(f"campaigns/{campaign}/criteria.json", pin)


def stop_if_criteria_changed(pin: CriteriaPin) -> None:
    """End the campaign when HEAD holds other criteria than it started with."""
    now = committed_file(Path(pin.path))
    if now.blob != pin.blob:
        raise CriteriaChanged(
            f"{pin.path} changed from {pin.blob[:12]} to {now.blob[:12]} during the campaign",
            remedy="Its results stay in the ledger; start a new campaign",
        )


@task(name="six questions", retries=1, retry_delay_seconds=2)
def answer_preconditions(params: CampaignParams, pin: CriteriaPin) -> Preconditions:
    """Measure the answers to the six questions (spec P1)."""
    store = open_store()
    traffic = sum(1 for _ in store.list(params.traffic_prefix))
    rollouts = list(rollouts_of(store, params.target))
    rollout = next((r for r in rollouts if r.phase not in TERMINAL), None)
    failed = next((r for r in rollouts if r.phase is Phase.ROLLBACK_FAILED), None)
    drills = [line.drill_ms for line in recall.fn(params.target) if line.drill_ms is not None]
    measured = Measured(
        window_s=params.window.end_s - params.window.start_s,
        window_needed_s=pin.criteria.windows.baseline_s,
        sandbox_shape=_sandbox_shape(),
        production_shape=params.production_shape,
        traffic_objects=traffic,
        criteria_pinned=pin.pinned,
        switch_drill_ms=drills[-1] if drills else None,
        rollout_under_way=rollout.rollout_id if rollout else "",
        rollback_failed=failed.rollout_id if failed else "",
    )
    judgement, answers = judge_preconditions(measured)
    return Preconditions(judgement=judgement, answers=answers)


def _sandbox_shape() -> str:
    from infra.settings.sandbox import SandboxSettings

    s = SandboxSettings()
    return f"{s.accelerator} x{s.accelerators}"


def stop_unless_ready(answers: Preconditions) -> None:
    """One no stops the campaign with that answer."""
    if answers.judgement.outcome is not Outcome.PASS:
        bad = "; ".join(r.text for r in answers.judgement.reasons if r.outcome is not Outcome.PASS)
        raise PreconditionFailed(f"the campaign does not start: {bad}")


@task(name="draft the plan", retries=1)
def draft_plan(
    params: CampaignParams, pin: CriteriaPin, verdict: SandboxVerdict, baseline: BaselineReport
) -> RolloutPlan | None:
    """What would be rolled out, or None when nothing was proven. A repeat finds the plan that was kept."""
    if verdict.judgement.outcome is not Outcome.PASS:
        return None
    store, key = open_store(), _plan_key(params.campaign)
    if store.exists(key):
        return store.get_record(key, RolloutPlan)
    return rollout_plan(
        verdict,
        pin.criteria,
        pin.criteria_hash,
        baseline_config=baseline.config,
        created_s=time.time(),
        discount_pct=sandbox_discount_pct(
            (line.throughput_change_pct, line.production_change_pct)
            for line in recall.fn(params.target)
            if line.kind == "rollout"
        ),
    )


@task(name="gate: verdict and plan")
def check_plan(verdict: SandboxVerdict, plan: RolloutPlan) -> tuple[GateResult, GateResult]:
    """The data-quality gates before a person is asked and production is touched."""
    return run_gate(VERDICT, verdict_rows(verdict)), run_gate(PLAN, plan_rows(plan))


@task(name="keep the plan", retries=1)
def keep_plan(params: CampaignParams, plan: RolloutPlan) -> tuple[RolloutPlan, str]:
    """The plan that waits for approval, and its key. A repeat finds it, and completes the ledger where a kill kept its
    line out."""
    store, key = open_store(), _plan_key(params.campaign)
    store.put_record_once(key, plan)
    plan = store.get_record(key, RolloutPlan)
    append_ledger(
        LedgerEntry(
            entry_id=plan.plan_id[:12],
            at_s=plan.created_s,
            target=params.target,
            campaign=params.campaign,
            kind="plan",
            changes=plan.changes,
            outcome_class="waits for approval",
            reason=f"expected {plan.expected_gain_pct:+.1f} % throughput",
            record_key=key,
            throughput_change_pct=plan.expected_gain_pct,
        )
    )
    return plan, key


def _plan_key(campaign: str) -> str:
    return f"campaigns/{campaign}/plan.json"


def append_ledger(entry: LedgerEntry) -> None:
    """Write one entry, once."""
    open_store().put_record_once(ledger_key(entry), entry)


@task(name="record campaign", retries=2, retry_delay_seconds=1)
def record_campaign(target: Target, campaign: str, outcome: Outcome, because: str, seconds: dict[str, float]) -> None:
    """The campaign's line in the ledger, with the time that each stage took."""
    append_ledger(
        LedgerEntry(
            entry_id=f"{campaign[:24]}-{uuid.uuid4().hex[:8]}",
            at_s=time.time(),
            target=target,
            campaign=campaign,
            kind="campaign",
            outcome_class=outcome.value,
            reason=because,
            stage_seconds=seconds,
        )
    )
