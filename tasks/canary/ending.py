"""How a rollout ends: the way back, and the verdict with its line in the ledger."""

from __future__ import annotations

import time

from prefect.logging import get_run_logger

from infra.connect import open_store
from infra.lease import Lease
from infra.traffic.fleet import FleetError, LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.canary import rollout as machine
from tasks.canary.conclusion import concluded, ledger_line
from tasks.canary.records import CanaryVerdict, Phase, RolloutState
from tasks.canary.storage import Rollout
from tasks.shared.ledger import ledger_key


def roll_back(
    rollout: Rollout,
    state: RolloutState,
    lease: Lease,
    switch: EnvoySwitch,
    fleet: LocalFleet,
) -> RolloutState:
    """Back to the baseline's configuration: weight 0 at once, then stable re-applied where it differs (case CA5)."""
    log, decided_s = get_run_logger(), time.monotonic()
    try:
        if not fleet.serves("stable", rollout.plan.baseline_config) and fleet.alive("canary"):
            # During a promotion stable may be gone or half new: it is made whole before it gets the traffic.
            fleet.ensure("stable", rollout.plan.baseline_config, renew=lambda: lease.keep(time.time()))
        report = switch.rollback()
        fleet.ensure("stable", rollout.plan.baseline_config, renew=lambda: lease.keep(time.time()))
        fleet.drain_and_retire("canary", switch, renew=lambda: lease.keep(time.time()))
    except (SwitchError, FleetError) as error:
        log.error("ROLLBACK FAILED: %s", error)
        return rollout.save(
            machine.moved(
                state,
                Phase.ROLLBACK_FAILED,
                time.time(),
                token=lease.token,
                intent=machine.ROLL_BACK,
                reason=f"{state.reason}; rollback failed: {error}",
            )
        )
    rollback_ms = report.last_request_ms(decided_s)
    log.warning("rolled back: %s (last request on the canary after %.0f ms)", state.reason, rollback_ms)
    state = rollout.save(
        machine.moved(
            state,
            Phase.ROLLED_BACK,
            time.time(),
            token=lease.token,
            rollback_ms=rollback_ms,
        )
    )
    lease.release()
    return state


def conclude(plan_key: str, state: RolloutState) -> CanaryVerdict:
    """The verdict of a rollout in a terminal state, and its line in the ledger.

    Both follow from what is stored: a repeat completes what a killed tick left out, and changes nothing else.
    A rollback that failed is not the end: it has a line in the ledger, and its verdict is not stored.
    """
    rollout = Rollout(open_store(), plan_key)
    verdict = concluded(state, rollout.verification())
    record_key = rollout.key
    if state.phase is not Phase.ROLLBACK_FAILED:
        record_key = f"{rollout.folder}/verdict.json"
        rollout.store.put_record_once(record_key, verdict)
    entry = ledger_line(state, verdict, record_key)
    rollout.store.put_record_once(ledger_key(entry), entry)
    return verdict
