"""The rollback drill: what was never drilled is a hope (spec R3)."""

from __future__ import annotations

import os
import socket
import time

from prefect import task

from infra.connect import open_store
from infra.errors import BadInput
from infra.lease import Lease
from infra.settings.production import ProductionSettings
from infra.store import ObjectStore
from infra.traffic.fleet import LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.canary.plan import approval_valid
from tasks.canary.records import DrillFigures, RolloutPlan
from tasks.canary.storage import Rollout, approval_of, lease_name
from tasks.shared.ledger import ledger_key
from tasks.shared.records import LedgerEntry, Outcome, Target

REQUESTS = 3
"""So many must have gone to the canary's arm before it is taken back."""


@task(name="rollback drill", retries=0, persist_result=False)
def drill(plan_key: str, share: float, ttl_s: float = 60.0, wait_s: float = 60.0) -> DrillFigures:
    """The approved canary under real traffic, rolled back by the switch and timed (spec R3).

    Raises:
        BadInput: the plan is not approved.
        LeaseHeld: a rollout of the target is under way.
        SwitchError: the canary got no traffic, or the switch did not go back.
    """
    store = open_store()
    plan = Rollout(store, plan_key).plan
    allowed = approval_valid(plan, approval_of(store, plan), time.time())
    if allowed.outcome is not Outcome.PASS:
        raise BadInput("; ".join(r.text for r in allowed.reasons), remedy=f"Run `ratchet approve {plan_key}` first")
    settings = ProductionSettings()  # read from the environment
    switch, fleet = EnvoySwitch.of_stack(settings.state_dir), LocalFleet(settings)
    lease = _lease(store, plan.target, ttl_s)
    try:
        fleet.ensure("canary", plan.config, renew=lambda: lease.keep(time.time()))
        figures = _there_and_back(switch, lease, share, wait_s)
    finally:
        lease.release()
    return _remember(store, plan.target, figures, plan)


def rehearse(
    store: ObjectStore,
    target: Target,
    switch: EnvoySwitch,
    fleet: LocalFleet,
    *,
    share: float = 0.5,
    ttl_s: float = 60.0,
    wait_s: float = 60.0,
) -> DrillFigures:
    """The switch alone, before there is a plan (spec P1): both arms are the stable replica, so nothing can break.

    Raises:
        BadInput: a canary runs, so there is something that can break.
        FleetError: no stable replica runs.
        LeaseHeld: a rollout of the target is under way.
        SwitchError: the canary's arm got no traffic, or the switch did not go back.
    """
    if fleet.alive("canary") or switch.weight() > 0:
        raise BadInput(
            "a canary is there already, or traffic for one",
            remedy="Drill with its plan: ratchet drill PLAN. If no rollout and no drill is under way: ratchet rollback",
        )
    address = fleet.address("stable")
    lease = _lease(store, target, ttl_s)
    try:
        switch.set_endpoint("canary", *address)
        figures = _there_and_back(switch, lease, share, wait_s)
        switch.clear_endpoint("canary")
    finally:
        lease.release()
    return _remember(store, target, figures, None)


def _lease(store: ObjectStore, target: Target, ttl_s: float) -> Lease:
    owner = f"drill {socket.gethostname()}:{os.getpid()}"
    return Lease.acquire(store, lease_name(target), owner=owner, ttl_s=ttl_s, now=time.time())


def _there_and_back(switch: EnvoySwitch, lease: Lease, share: float, wait_s: float) -> DrillFigures:
    before = switch.counters()["canary"].rq_total
    try:
        switch.set_weight(share)
        deadline = time.monotonic() + wait_s
        while switch.counters()["canary"].rq_total < before + REQUESTS:
            if time.monotonic() > deadline:
                raise SwitchError(
                    f"the canary got fewer than {REQUESTS} requests in {wait_s:.0f} s at {share:.0%}",
                    remedy="A drill needs traffic",
                )
            lease.renew(time.time())
            time.sleep(0.1)
    finally:
        report = switch.rollback()
    return DrillFigures(
        decision_to_last_request_ms=report.last_request_ms(report.decision_monotonic_s),
        in_force_ms=report.in_force_ms,
        canary_requests_after=report.canary_requests_after,
    )


def _remember(store: ObjectStore, target: Target, figures: DrillFigures, plan: RolloutPlan | None) -> DrillFigures:
    milliseconds = figures.decision_to_last_request_ms
    of_what = "switch" if plan is None else plan.plan_id[:12]
    entry = LedgerEntry(
        entry_id=f"drill-{of_what}-{time.time_ns() // 1_000_000}",
        at_s=time.time(),
        target=target,
        campaign="" if plan is None else plan.campaign,
        kind="drill",
        changes={} if plan is None else plan.changes,
        outcome_class="drilled",
        reason=f"{milliseconds:.0f} ms to the last new request on the canary",
        drill_ms=milliseconds,
    )
    store.put_record_once(ledger_key(entry), entry)
    return figures
