"""The rollout's state machine: what a tick decides and what the next state is (spec R7, cases CA1, CA2, CA5).
Pure.

Order of one tick: read, judge, `decide`, `next_state` (written before acting, its `intent` names the effect),
act, read back, then the function that records what was verified. A rollback once decided is never taken back.
"""

from __future__ import annotations

from typing import Literal

from infra.errors import BadInput
from tasks.canary.exposure import smallest_excludable_harm
from tasks.canary.records import CanaryReadings, Phase, RolloutPlan, RolloutState, StepDecision
from tasks.shared.records import Criteria, Judgement, Outcome

Action = Literal["advance", "hold", "roll_back"]

TERMINAL = frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED, Phase.REFUSED})


def under_way(state: RolloutState) -> bool:
    """Whether a rollout has begun and still concerns production; a rollback that failed does."""
    return state.phase is Phase.ROLLBACK_FAILED or state.phase not in TERMINAL | {Phase.PREPARED}


ROLL_BACK = "roll back"

ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.PREPARED: frozenset({Phase.DEPLOYING, Phase.REFUSED}),
    Phase.DEPLOYING: frozenset({Phase.STEP, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}),
    Phase.STEP: frozenset({Phase.STEP, Phase.PROMOTING, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}),
    Phase.PROMOTING: frozenset({Phase.VERIFYING, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}),
    Phase.VERIFYING: frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}),
    Phase.COMPLETED: frozenset(),
    Phase.ROLLED_BACK: frozenset(),
    # A rollback that failed may be tried again, and by nothing else be left.
    Phase.ROLLBACK_FAILED: frozenset({Phase.ROLLED_BACK}),
    Phase.REFUSED: frozenset(),
}


def rolling_back(state: RolloutState) -> bool:
    """Whether a rollback was decided, done or tried; it survives restarts because it is read from the
    state."""
    return (
        state.phase in {Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}
        or state.intent == ROLL_BACK
        or any(d.action == "roll_back" or d.judgement.outcome is Outcome.FAIL for d in state.decisions)
    )


def decide(state: RolloutState, judgement: Judgement, now_s: float, *, passes_to_advance: int) -> Action:
    """What one tick in a step does.

    roll_back: a confirmed breach, now or at any time before (a later pass never overwrites it), or no pass
    for `max_hold_s` (since the step began or since its last pass). advance: the step's duration is over, this
    reading passes, and it is at least the k-th that did. hold: anything else.

    Args:
        passes_to_advance: `criteria.passes_to_advance`.

    Raises:
        BadInput: the rollout is not in a step.
    """
    if rolling_back(state) or judgement.outcome is Outcome.FAIL:
        return "roll_back"
    if state.phase is not Phase.STEP:
        raise BadInput(f"rollout {state.rollout_id} is {state.phase.value}, and only a step is judged")
    step = state.plan.steps[state.step]
    if judgement.outcome is Outcome.PASS:
        long_enough = now_s - state.step_started_s >= step.duration_s
        return "advance" if long_enough and state.passes + 1 >= passes_to_advance else "hold"
    return "roll_back" if now_s - _last_pass_s(state) >= step.max_hold_s else "hold"


def _last_pass_s(state: RolloutState) -> float:
    passes = [
        d.at_s
        for d in state.decisions
        if d.step == state.step and d.judgement.outcome is Outcome.PASS and d.at_s >= state.step_started_s
    ]
    return max(passes, default=state.step_started_s)


def step_decision(
    state: RolloutState,
    judgement: Judgement,
    now_s: float,
    criteria: Criteria,
    *,
    readings: CanaryReadings | None = None,
    share: float | None = None,
) -> StepDecision:
    """`decide` with what belongs into the record: the real share and the smallest harm that the step can
    exclude.

    Args:
        share: the share that was read back, where it differs from the plan's.
    """
    action = decide(state, judgement, now_s, passes_to_advance=criteria.passes_to_advance)
    canary = None if readings is None else readings.canary.requests.value
    rate = None
    if readings is not None and readings.stable.requests.value and readings.stable.errors.value is not None:
        rate = readings.stable.errors.value / readings.stable.requests.value
    guard = next((g for g in criteria.guards if g.name == "error_rate"), None)
    allowed = (guard.max_increase_abs or 0.0) / 100 if guard is not None else 0.0
    planned = state.plan.steps[min(state.step, len(state.plan.steps) - 1)].share
    return StepDecision(
        step=state.step,
        share=planned if share is None else share,
        at_s=now_s,
        judgement=judgement,
        action=action,
        readings=readings,
        smallest_excludable_harm=smallest_excludable_harm(canary, rate, allowed_increase=allowed),
    )


def next_state(state: RolloutState, decision: StepDecision, *, token: int) -> RolloutState:
    """The state after one decision. On roll_back only the intent is set: the phase follows when it is
    verified.

    A terminal state, and one that is rolling back, take no further decision and come back unchanged.
    """
    if state.phase in TERMINAL or rolling_back(state):
        return state
    common = {"decisions": (*state.decisions, decision), "updated_s": decision.at_s, "token": token}
    passed = decision.judgement.outcome is Outcome.PASS
    if decision.action == "roll_back":
        return state.model_copy(update={**common, "intent": ROLL_BACK, "reason": because(decision)})
    if decision.action == "hold":
        return state.model_copy(update={**common, "passes": state.passes + passed})
    if state.step + 1 < len(state.plan.steps):
        share = state.plan.steps[state.step + 1].share
        return state.model_copy(
            update={
                **common,
                "step": state.step + 1,
                "passes": 0,
                "step_started_s": decision.at_s,
                "intent": f"set share {share:g}",
            }
        )
    return state.model_copy(update={**common, "phase": Phase.PROMOTING, "passes": 0, "intent": "promote"})


def because(decision: StepDecision) -> str:
    """Why a decision was made, in one line."""
    outcome = decision.judgement.outcome
    bad = [r.text for r in decision.judgement.reasons if r.outcome is outcome] or ["nothing was judged"]
    lead = {
        Outcome.FAIL: "breach",
        Outcome.NO_DATA: "no data",
        Outcome.ERROR: "readings contradict each other",
        Outcome.INCONCLUSIVE: "not decided in time",
        Outcome.PASS: "passed",
    }[outcome]
    return f"{lead}: {'; '.join(bad)}"


def prepared(rollout_id: str, plan: RolloutPlan, now_s: float, *, token: int) -> RolloutState:
    """A rollout that waits for approval. Its plan holds the configuration that a rollback goes back to."""
    return RolloutState(rollout_id=rollout_id, plan=plan, phase=Phase.PREPARED, token=token, updated_s=now_s)


def moved(
    state: RolloutState,
    phase: Phase,
    now_s: float,
    *,
    token: int,
    intent: str = "",
    reason: str | None = None,
    rollback_ms: float | None = None,
) -> RolloutState:
    """The state in another phase, once that was verified. Moving to the phase it is in changes nothing.

    Raises:
        BadInput: the phase cannot follow; a terminal one is left by nothing but a repeated rollback.
    """
    if phase is state.phase and phase is not Phase.STEP:
        return state
    if phase not in ALLOWED[state.phase]:
        raise BadInput(f"rollout {state.rollout_id} is {state.phase.value} and cannot become {phase.value}")
    if rolling_back(state) and phase not in {Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED}:
        raise BadInput(
            f"rollout {state.rollout_id} is being rolled back ({state.reason}) and cannot become {phase.value}"
        )
    update: dict[str, object] = {"phase": phase, "updated_s": now_s, "token": token, "intent": intent}
    if phase is Phase.STEP and state.phase is not Phase.STEP:
        update |= {"step": 0, "passes": 0, "step_started_s": now_s}
    if reason is not None:
        update["reason"] = reason
    if rollback_ms is not None:
        update["rollback_ms"] = rollback_ms
    return state.model_copy(update=update)


def intend_rollback(state: RolloutState, now_s: float, reason: str, *, token: int) -> RolloutState:
    """Persisted before a rollback that no step decided (by hand, or in another phase). Idempotent; with
    nothing in progress it is a no-op, since there is nothing to take back (case CA5)."""
    if state.phase in TERMINAL or state.phase is Phase.PREPARED or state.intent == ROLL_BACK:
        return state
    return state.model_copy(update={"intent": ROLL_BACK, "reason": reason, "updated_s": now_s, "token": token})


def step_in_force(state: RolloutState, now_s: float, *, token: int) -> RolloutState:
    """The step's share was set and read back: its clock starts now."""
    return state.model_copy(update={"intent": "", "step_started_s": now_s, "updated_s": now_s, "token": token})
