"""Stage 5's effects. One tick: take the lease, read, judge, write the intent, act, read back, write what is true.

Every effect is idempotent: the present state is read first and only a difference is acted on. A killed tick is
continued by the next one from the written state; meanwhile the guardian takes the canary to weight 0 when the
lease runs out.
"""

from __future__ import annotations

import os
import socket
import time

from prefect import task
from prefect.logging import get_run_logger

from infra.connect import open_store
from infra.errors import BadInput
from infra.lease import Lease, LeaseLost
from infra.settings.production import ProductionSettings
from infra.store import ObjectStore
from infra.traffic.fleet import FleetError, LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.baseline.production import production_metrics
from tasks.baseline.records import BaselineReport
from tasks.canary import rollout as machine
from tasks.canary.arms import read_both
from tasks.canary.plan import approval_valid
from tasks.canary.records import Approval, CanaryVerdict, Phase, RolloutPlan, RolloutState
from tasks.canary.rules import judge_step, production_verdict, stable_reference
from tasks.shared.ledger import ledger_key
from tasks.shared.outcomes import judgement
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import Criteria, Judgement, LedgerEntry, Outcome, Reading, Reason, Target, Window

SETTLE_S = 2.0
"""Prometheus scrapes each second: a step is not read before two scrapes lie in it."""


def rollout_folder(target: Target, rollout_id: str) -> str:
    """Where a rollout lies in S3."""
    return f"rollouts/{target.key}/{rollout_id}"


def lease_name(target: Target) -> str:
    """The lease of a target's rollout; the guardian watches it."""
    return f"rollout/{target.key}"


class Rollout:
    """One rollout's state in S3, written by compare-and-swap only."""

    def __init__(self, store: ObjectStore, plan_key: str) -> None:
        self.store = store
        self.plan = store.get_record(plan_key, RolloutPlan)
        self.folder = rollout_folder(self.plan.target, self.plan.plan_id)
        self.key = f"{self.folder}/state.json"
        self.etag = ""

    def load(self, now_s: float) -> RolloutState:
        """The state, made where there is none."""
        if not self.store.exists(self.key):
            self.store.put_record_once(self.key, machine.prepared(self.plan.plan_id, self.plan, now_s, token=0))
        state, self.etag = self.store.get_record_with_etag(self.key, RolloutState)
        return state

    def unchanged(self) -> bool:
        """Whether the state in S3 is still the one that this process read or wrote last."""
        return self.store.get_with_etag(self.key)[1] == self.etag

    def save(self, state: RolloutState) -> RolloutState:
        """Write a new version.

        Raises:
            SwitchError: someone else wrote meanwhile; this process must not act any more.
        """
        etag = self.store.put_if_match(self.key, state.model_dump_json(indent=1).encode(), self.etag)
        if etag is None:
            raise SwitchError(
                f"rollout {state.rollout_id[:12]} was written by another process",
                remedy="This one stops; the other goes on",
            )
        self.etag = etag
        return state


def _approval(store: ObjectStore, plan: RolloutPlan) -> Approval | None:
    key = f"approvals/{plan.content_hash()}.json"
    return store.get_record(key, Approval) if store.exists(key) else None


def _criteria(store: ObjectStore, plan: RolloutPlan) -> Criteria:
    return store.get_record(f"campaigns/{plan.campaign}/criteria.json", CriteriaPin).criteria


def _baseline(store: ObjectStore, plan: RolloutPlan) -> BaselineReport:
    return store.get_record(f"campaigns/{plan.campaign}/baseline.json", BaselineReport)


def take_lease(store: ObjectStore, state: RolloutState, target: Target, ttl_s: float) -> Lease:
    """Go on under the token that wrote the state, or take an expired lease over with a higher one.

    Raises:
        LeaseHeld: another process holds it under another token.
    """
    name = lease_name(target)
    try:
        return Lease.resume(store, name, state.token, ttl_s, time.time())
    except LeaseLost:
        return Lease.acquire(store, name, owner=f"{socket.gethostname()}:{os.getpid()}", ttl_s=ttl_s, now=time.time())


@task(name="rollout tick", retries=0, persist_result=False)
def tick(plan_key: str, ttl_s: float, verify_window: Window | None = None) -> RolloutState:
    """One tick of the rollout.

    Raises:
        LeaseHeld: another process is at it.
        SwitchError, FleetError: production could not be read or changed; the state says what was intended.
    """
    store = open_store()
    rollout = Rollout(store, plan_key)
    settings = ProductionSettings()  # read from the environment
    state = rollout.load(time.time())
    if state.phase in machine.TERMINAL and state.phase is not Phase.ROLLBACK_FAILED:
        return state
    lease = take_lease(store, state, rollout.plan.target, ttl_s)
    lease.renew(time.time())
    if lease.token != state.token and state.phase is not Phase.PREPARED:
        # Written at once: whoever acted under the old token can write no more.
        state = rollout.save(state.model_copy(update={"token": lease.token}))
    switch, fleet = EnvoySwitch.of_stack(settings.state_dir), LocalFleet(settings)
    return advance(rollout, state, lease, switch, fleet, verify_window)


def give_canary(rollout: Rollout, lease: Lease, switch: EnvoySwitch, share: float) -> None:
    """Set a share above 0, and only while this process is the one that may: a rollback by hand or another owner
    that came in between is found before, and again after, when the weight goes back to 0.

    Raises:
        SwitchError: the rollout was written by someone else.
        LeaseLost: the lease is another's.
    """
    lease.renew(time.time())
    if rollout.unchanged():
        switch.set_weight(share)
        if rollout.unchanged():
            return
        switch.rollback()
    raise SwitchError("the rollout was written by another process", remedy="This one stops; the other goes on")


def advance(
    rollout: Rollout,
    state: RolloutState,
    lease: Lease,
    switch: EnvoySwitch,
    fleet: LocalFleet,
    verify_window: Window | None,
) -> RolloutState:
    """One move of the machine; the lease stays held between ticks so that the guardian knows a dead one."""
    log = get_run_logger()
    if machine.rolling_back(state):
        return roll_back(rollout, state, lease, switch, fleet)
    if state.phase is Phase.PREPARED:
        return _start(rollout, state, lease)
    if state.phase is Phase.DEPLOYING:
        try:
            fleet.ensure("canary", rollout.plan.config, renew=lambda: lease.renew(time.time()))
        except FleetError as error:
            state = rollout.save(machine.intend_rollback(state, time.time(), str(error), token=lease.token))
            return roll_back(rollout, state, lease, switch, fleet)
        lease.renew(time.time())
        give_canary(rollout, lease, switch, rollout.plan.steps[0].share)
        log.info("canary serves %s of the conversations", f"{switch.weight():.1%}")
        return rollout.save(machine.moved(state, Phase.STEP, time.time(), token=lease.token))
    if state.phase is Phase.STEP:
        return _step(rollout, state, lease, switch, fleet)
    if state.phase is Phase.PROMOTING:
        return _promote(rollout, state, lease, switch, fleet)
    if state.phase is Phase.VERIFYING and verify_window is not None:
        return _verify(rollout, state, lease, switch, fleet, verify_window)
    lease.renew(time.time())
    return state


def _start(rollout: Rollout, state: RolloutState, lease: Lease) -> RolloutState:
    now_s = time.time()
    approval = _approval(rollout.store, rollout.plan)
    allowed = approval_valid(rollout.plan, approval, now_s)
    if allowed.outcome is Outcome.PASS:
        return rollout.save(
            machine.moved(state, Phase.DEPLOYING, now_s, token=lease.token, intent="deploy canary", reason="")
        )
    reason = "; ".join(r.text for r in allowed.reasons)
    if approval is None:
        lease.release()
        return rollout.save(state.model_copy(update={"reason": reason, "updated_s": now_s}))
    state = rollout.save(machine.moved(state, Phase.REFUSED, now_s, token=lease.token, reason=reason))
    lease.release()
    return state


def _step(rollout: Rollout, state: RolloutState, lease: Lease, switch: EnvoySwitch, fleet: LocalFleet) -> RolloutState:
    log = get_run_logger()
    plan, step = rollout.plan, rollout.plan.steps[state.step]
    lease.renew(time.time())
    if state.intent or abs(switch.weight() - step.share) > 1e-4:
        give_canary(rollout, lease, switch, step.share)
        state = rollout.save(machine.step_in_force(state, time.time(), token=lease.token))
        log.info("step %d: canary serves %.1f %%", state.step + 1, step.share * 100)
        return state
    now_s = time.time()
    if now_s - state.step_started_s < SETTLE_S:
        return state
    criteria = _criteria(rollout.store, plan)
    if not fleet.alive("canary"):
        judged = judgement(
            [
                Reason(
                    rule="engine_up",
                    outcome=Outcome.FAIL,
                    observed=0.0,
                    limit=1.0,
                    unit="engines",
                    text="the canary's engine process is gone: " + fleet.last_words("canary"),
                )
            ]
        )
        readings = None
    else:
        p99 = _baseline(rollout.store, plan).metric("p99_latency").value
        readings = read_both(state.step_started_s, now_s, p99)
        judged = judge_step(readings, step, criteria, reference=stable_reference(state))
    decision = machine.step_decision(state, judged, now_s, criteria, readings=readings, share=switch.weight())
    log.info("step %d at %.1f %%: %s, %s", state.step + 1, step.share * 100, judged.outcome.value, decision.action)
    state = rollout.save(machine.next_state(state, decision, token=lease.token))
    if decision.action == "roll_back":
        return roll_back(rollout, state, lease, switch, fleet)
    if state.phase is Phase.STEP and state.intent:
        give_canary(rollout, lease, switch, plan.steps[state.step].share)
        state = rollout.save(machine.step_in_force(state, time.time(), token=lease.token))
        log.info("step %d: canary serves %.1f %%", state.step + 1, plan.steps[state.step].share * 100)
    return state


def _promote(
    rollout: Rollout,
    state: RolloutState,
    lease: Lease,
    switch: EnvoySwitch,
    fleet: LocalFleet,
) -> RolloutState:
    """Stable gets the proven configuration while the canary serves everything (spec R5)."""
    log = get_run_logger()
    if not fleet.serves("stable", rollout.plan.config):
        # Not when stable is new already: the canary may be retired by then.
        give_canary(rollout, lease, switch, 1.0)
    try:
        fleet.ensure("stable", rollout.plan.config, renew=lambda: lease.renew(time.time()))
    except FleetError as error:
        state = rollout.save(machine.intend_rollback(state, time.time(), str(error), token=lease.token))
        return roll_back(rollout, state, lease, switch, fleet)
    report = switch.rollback()
    log.info(
        "promoted: stable serves everything with the new configuration; last request on the canary after %.0f ms",
        report.last_canary_request_ms or 0.0,
    )
    fleet.drain_and_retire("canary", switch)
    return rollout.save(
        machine.moved(state, Phase.VERIFYING, time.time(), token=lease.token, reason="waits for production's window")
    )


def _verify(
    rollout: Rollout, state: RolloutState, lease: Lease, switch: EnvoySwitch, fleet: LocalFleet, window: Window
) -> RolloutState:
    """C2 once more, on production, over a window as long as the baseline's (spec R5)."""
    plan = rollout.plan
    criteria = _criteria(rollout.store, plan)
    if window.start_s < state.updated_s or window.end_s > time.time():
        raise BadInput(
            f"the window {window.start_s:.0f} to {window.end_s:.0f} does not lie between the promotion "
            f"({state.updated_s:.0f}) and now",
            remedy="Only traffic on the new configuration can verify it",
        )
    if window.end_s - window.start_s < criteria.windows.baseline_s:
        raise BadInput(
            f"a window of {window.end_s - window.start_s:.0f} s is shorter than the baseline's "
            f"{criteria.windows.baseline_s:.0f} s"
        )
    before = {m.name: m.reading for m in _baseline(rollout.store, plan).metrics}
    measured = production_metrics("stable", window, criteria)
    after = {m.name: m.reading for m in measured}
    judged = production_verdict(before, after, criteria)
    if judged.outcome is Outcome.FAIL:
        why = "; ".join(r.text for r in judged.reasons if r.outcome is Outcome.FAIL)
        state = rollout.save(
            machine.intend_rollback(state, time.time(), f"production disagrees: {why}", token=lease.token)
        )
        state = roll_back(rollout, state, lease, switch, fleet)
    elif judged.outcome is Outcome.PASS:
        state = rollout.save(
            machine.moved(
                state, Phase.COMPLETED, time.time(), token=lease.token, reason="; ".join(r.text for r in judged.reasons)
            )
        )
        lease.release()
    else:
        why = "; ".join(r.text for r in judged.reasons if r.outcome is not Outcome.PASS)
        state = rollout.save(
            machine.intend_rollback(state, time.time(), f"production proves nothing: {why}", token=lease.token)
        )
        state = roll_back(rollout, state, lease, switch, fleet)
    _conclude(rollout, state, judged, before, after)
    return state


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
            fleet.ensure("stable", rollout.plan.baseline_config, renew=lambda: lease.renew(time.time()))
        report = switch.rollback()
        fleet.ensure("stable", rollout.plan.baseline_config, renew=lambda: lease.renew(time.time()))
        fleet.drain_and_retire("canary", switch)
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
    return _conclude(rollout, state, said, {}, {})


def _conclude(
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
    allowed = approval_valid(plan, _approval(store, plan), time.time())
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
        fleet.ensure("canary", plan.config, renew=lambda: lease.renew(time.time()))
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
    milliseconds = report.last_canary_request_ms if report.last_canary_request_ms is not None else report.in_force_ms
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
