"""The rollback drill: what was never drilled is a hope (spec R3)."""

from __future__ import annotations

import os
import socket
import time

from prefect import task
from prefect.logging import get_run_logger

from infra.connect import open_store
from infra.errors import BadInput
from infra.lease import Lease
from infra.settings.production import ProductionSettings
from infra.traffic.fleet import LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.canary.plan import approval_valid
from tasks.canary.storage import Rollout, approval_of, lease_name
from tasks.shared.ledger import ledger_key
from tasks.shared.records import LedgerEntry, Outcome


@task(name="rollback drill", retries=0, persist_result=False)
def drill(plan_key: str, share: float, ttl_s: float = 60.0, wait_s: float = 60.0) -> dict[str, float]:
    """The approved canary under real traffic, rolled back by the switch and timed (spec R3).

    Raises:
        BadInput: the plan is not approved.
        SwitchError: the canary got no traffic, or the switch did not go back.
    """
    store = open_store()
    rollout = Rollout(store, plan_key)
    plan = rollout.plan
    allowed = approval_valid(plan, approval_of(store, plan), time.time())
    if allowed.outcome is not Outcome.PASS:
        raise BadInput("; ".join(r.text for r in allowed.reasons), remedy="ratchet approve " + plan_key)
    settings = ProductionSettings()  # read from the environment
    switch, fleet = EnvoySwitch.of_stack(settings.state_dir), LocalFleet(settings)
    lease = Lease.acquire(
        store,
        lease_name(plan.target),
        owner=f"drill {socket.gethostname()}:{os.getpid()}",
        ttl_s=ttl_s,
        now=time.time(),
    )
    log = get_run_logger()
    try:
        fleet.ensure("canary", plan.config, renew=lambda: lease.keep(time.time()))
        before = switch.counters()["canary"].rq_total
        switch.set_weight(share)
        deadline = time.monotonic() + wait_s
        while switch.counters()["canary"].rq_total < before + 3:
            if time.monotonic() > deadline:
                raise SwitchError(
                    f"the canary got fewer than 3 requests in {wait_s:.0f} s at {share:.0%}",
                    remedy="A drill needs traffic",
                )
            lease.renew(time.time())
            time.sleep(0.2)
    finally:
        report = switch.rollback()
        lease.release()
    milliseconds = report.last_request_ms(report.decision_monotonic_s)
    log.info(
        "drill: weight 0 in force after %.0f ms, last new request on the canary after %.0f ms, %d after that",
        report.in_force_ms,
        milliseconds,
        report.canary_requests_after,
    )
    entry = LedgerEntry(
        entry_id=f"drill-{plan.plan_id[:12]}-{time.time_ns() // 1_000_000}",
        at_s=time.time(),
        target=plan.target,
        campaign=plan.campaign,
        kind="drill",
        changes=plan.changes,
        outcome_class="drilled",
        reason=f"{milliseconds:.0f} ms to the last new request on the canary",
    )
    store.put_record_once(ledger_key(entry), entry)
    return {
        "decision_to_last_request_ms": milliseconds,
        "in_force_ms": report.in_force_ms,
        "canary_requests_after": float(report.canary_requests_after),
    }
