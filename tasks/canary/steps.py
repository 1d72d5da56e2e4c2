"""Stage 5's effects. One tick: take the lease, read, judge, write the intent, act, read back, write what is true.

Every effect is idempotent: the present state is read first and only a difference is acted on. A killed tick is
continued by the next one from the written state; meanwhile the guardian takes the canary to weight 0 when the
lease runs out.
"""

from __future__ import annotations

import time

from prefect import task
from prefect.logging import get_run_logger

from infra.connect import open_store
from infra.errors import BadInput
from infra.lease import Lease
from infra.settings.production import ProductionSettings
from infra.traffic.fleet import FleetError, LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.baseline.production import production_metrics
from tasks.baseline.rules import cost_per_million_tokens, week_to_week_pct
from tasks.canary import rollout as machine
from tasks.canary.arms import read_both
from tasks.canary.ending import roll_back
from tasks.canary.plan import approval_valid
from tasks.canary.records import Phase, RolloutState, Verification
from tasks.canary.rules import judge_step, production_verdict, stable_reference
from tasks.canary.storage import Rollout, approval_of, baseline_of, criteria_of, take_lease
from tasks.shared.outcomes import judgement
from tasks.shared.records import Judgement, Outcome, Reason, Window

SETTLE_S = 2.0
"""Prometheus scrapes each second: a step is not read before two scrapes lie in it."""


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
        return _start(rollout, state, lease, switch, fleet)
    if state.phase is Phase.DEPLOYING:
        try:
            fleet.ensure("canary", rollout.plan.config, renew=lambda: lease.keep(time.time()))
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
    if state.phase is Phase.VERIFYING:
        verified = rollout.verification()  # there already when a tick was killed after it had measured
        if verified is None and verify_window is not None:
            verified = _measure_production(rollout, state, verify_window)
        if verified is not None:
            return _act_on_production(rollout, state, lease, switch, fleet, verified.judgement)
    lease.renew(time.time())
    return state


def _start(rollout: Rollout, state: RolloutState, lease: Lease, switch: EnvoySwitch, fleet: LocalFleet) -> RolloutState:
    now_s = time.time()
    approval = approval_of(rollout.store, rollout.plan)
    allowed = approval_valid(rollout.plan, approval, now_s)
    if allowed.outcome is Outcome.PASS and (others := rollout.others_under_way()):
        names = ", ".join(f"{other.rollout_id[:12]} ({other.phase.value})" for other in others)
        reason = (
            f"one change group at a time: of this target, rollout {names} has not ended; let it end or roll it back"
        )
        lease.release()
        return rollout.save(state.model_copy(update={"reason": reason, "updated_s": now_s}))
    if allowed.outcome is Outcome.PASS and not fleet.serves("stable", rollout.plan.baseline_config):
        reason = "stable does not serve the configuration that this plan was measured against"
        if fleet.alive("stable"):
            reason += "; its gain is another one now: run a new campaign"
            state = rollout.save(machine.moved(state, Phase.REFUSED, now_s, token=lease.token, reason=reason))
        else:
            reason += ": no stable replica runs"
            state = rollout.save(state.model_copy(update={"reason": reason, "updated_s": now_s}))
        lease.release()
        return state
    if allowed.outcome is Outcome.PASS:
        if switch.weight() > 0:
            switch.rollback()  # left by a drill that was killed: the first step would begin with its share
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
    criteria = criteria_of(rollout.store, plan)
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
        p99 = baseline_of(rollout.store, plan).metric("p99_latency").value
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
        fleet.ensure("stable", rollout.plan.config, renew=lambda: lease.keep(time.time()))
    except FleetError as error:
        state = rollout.save(machine.intend_rollback(state, time.time(), str(error), token=lease.token))
        return roll_back(rollout, state, lease, switch, fleet)
    report = switch.rollback()
    log.info(
        "promoted: stable serves everything with the new configuration; last request on the canary after %.0f ms",
        report.last_request_ms(report.decision_monotonic_s),
    )
    fleet.drain_and_retire("canary", switch, renew=lambda: lease.keep(time.time()))
    return rollout.save(
        machine.moved(state, Phase.VERIFYING, time.time(), token=lease.token, reason="waits for production's window")
    )


def _measure_production(rollout: Rollout, state: RolloutState, window: Window) -> Verification:
    """C2 once more, on production, over a window as long as the baseline's (spec R5). Stored before anything follows
    from it.

    Raises:
        BadInput: the window does not lie between the promotion and now, or is too short.
    """
    criteria = criteria_of(rollout.store, rollout.plan)
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
    baseline = baseline_of(rollout.store, rollout.plan)
    before = {m.name: m.reading for m in baseline.metrics}
    found = production_metrics("stable", window, criteria, baseline.accelerators)
    after = {m.name: m.reading for m in found}
    if (throughput := after.get("throughput_per_gpu")) is not None:
        price = criteria.price_per_accelerator_hour
        after["cost_per_million_tokens"] = cost_per_million_tokens(throughput, price)
    judged = production_verdict(before, after, criteria, floors=week_to_week_pct(baseline.metrics))
    return rollout.keep_verification(Verification(window=window, judgement=judged, before=before, after=after))


def _act_on_production(
    rollout: Rollout, state: RolloutState, lease: Lease, switch: EnvoySwitch, fleet: LocalFleet, judged: Judgement
) -> RolloutState:
    if judged.outcome is Outcome.PASS:
        reason = "; ".join(r.text for r in judged.reasons)
        state = rollout.save(machine.moved(state, Phase.COMPLETED, time.time(), token=lease.token, reason=reason))
        lease.release()
        return state
    failed = [r for r in judged.reasons if r.outcome is Outcome.FAIL]
    against = failed or [r for r in judged.reasons if r.outcome is not Outcome.PASS]
    why = "; ".join(r.text for r in against)
    reason = f"production {'disagrees' if failed else 'proves nothing'}: {why}"
    state = rollout.save(machine.intend_rollback(state, time.time(), reason, token=lease.token))
    return roll_back(rollout, state, lease, switch, fleet)
