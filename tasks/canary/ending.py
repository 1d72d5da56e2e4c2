"""How a rollout ends: the way back, and the verdict with its line in the ledger."""

from __future__ import annotations

import time

from prefect.logging import get_run_logger

from infra.connect import open_store
from infra.lease import Lease
from infra.traffic.fleet import FleetError, LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.canary import rollout as machine
from tasks.canary.records import CanaryVerdict, Phase, RolloutPlan, RolloutState
from tasks.canary.storage import Rollout, rollout_folder
from tasks.shared.ledger import ledger_key
from tasks.shared.records import Judgement, LedgerEntry, Outcome, Reading, Reason


def roll_back(
    rollout: Rollout,
    state: RolloutState,
    lease: Lease,
    switch: EnvoySwitch,
    fleet: LocalFleet,
) -> RolloutState:
    """Back to the baseline's configuration: weight 0 at once, then stable re-applied where it differs (case CA5)."""
    log = get_run_logger()
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
    log.warning(
        "rolled back: %s (last request on the canary after %.0f ms)", state.reason, report.last_canary_request_ms or 0.0
    )
    state = rollout.save(
        machine.moved(
            state,
            Phase.ROLLED_BACK,
            time.time(),
            token=lease.token,
            rollback_ms=report.last_canary_request_ms or report.in_force_ms,
        )
    )
    lease.release()
    return state


def stored_verdict(plan: RolloutPlan) -> CanaryVerdict | None:
    """The verdict of a finished rollout."""
    store, key = open_store(), f"{rollout_folder(plan.target, plan.plan_id)}/verdict.json"
    return store.get_record(key, CanaryVerdict) if store.exists(key) else None


def conclude(plan_key: str, state: RolloutState) -> CanaryVerdict:
    """The verdict of a rollout that ended before production was verified."""
    rollout = Rollout(open_store(), plan_key)
    outcome = Outcome.PASS if state.phase is Phase.COMPLETED else Outcome.FAIL
    said = Judgement(
        outcome=outcome, reasons=(Reason(rule="rollout", outcome=outcome, text=state.reason or state.phase.value),)
    )
    return write_conclusion(rollout, state, said, {}, {})


def write_conclusion(
    rollout: Rollout, state: RolloutState, judged: Judgement, before: dict[str, Reading], after: dict[str, Reading]
) -> CanaryVerdict:
    b, a = before.get("throughput_per_gpu"), after.get("throughput_per_gpu")
    change = None
    if b is not None and a is not None and b.value and a.value is not None:
        change = (a.value - b.value) / b.value * 100
    verdict = CanaryVerdict(
        rollout_id=state.rollout_id,
        target=rollout.plan.target,
        judgement=judged,
        phase=state.phase,
        decisions=state.decisions,
        production_before=before,
        production_after=after,
        production_change_pct=change,
        rollback_ms=state.rollback_ms,
    )
    rollout.store.put_record_once(f"{rollout.folder}/verdict.json", verdict)
    entry = LedgerEntry(
        entry_id=f"{state.rollout_id[:12]}-{state.phase.value.replace(' ', '-')}",
        at_s=time.time(),
        target=rollout.plan.target,
        campaign=rollout.plan.campaign,
        kind="rollout",
        changes=rollout.plan.changes,
        outcome_class=state.phase.value,
        reason=state.reason,
        throughput_change_pct=rollout.plan.expected_gain_pct,
        production_change_pct=change,
        record_key=f"{rollout.folder}/verdict.json",
    )
    rollout.store.put_record_once(ledger_key(entry), entry)
    return verdict
