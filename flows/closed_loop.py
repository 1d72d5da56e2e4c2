"""The loop over the stages. A campaign is stages 1 to 4; it ends in a plan that waits for a person."""

from __future__ import annotations

import time
from contextlib import ExitStack

from prefect import flow
from pydantic import Field

from flows import publish
from flows.baseline import run_baseline
from flows.bottleneck import run_bottleneck
from flows.hypothesis import run_hypothesis
from flows.sandbox import run_sandbox
from tasks.campaign import steps
from tasks.canary.records import RolloutPlan
from tasks.hypothesis.records import Hypotheses
from tasks.sandbox import steps as sandbox_steps
from tasks.sandbox.records import SandboxVerdict
from tasks.shared.gate_steps import stop_on
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Outcome, Record


class LoopState(Record):
    """What is carried from round to round, and why the loop ended."""

    campaign: str
    round: int = 0
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    verdict: SandboxVerdict | None = None
    plan: RolloutPlan | None = None
    plan_key: str = ""
    outcome: Outcome = Outcome.NO_DATA
    ended_because: str = ""


def _used_up(hypotheses: Hypotheses) -> str:
    """Why there was nothing to measure, with the first refusals."""
    if not hypotheses.refused:
        return "the ideas are used up"
    some = "; ".join(refused.text for refused in hypotheses.refused[:3])
    return f"the ideas are used up: {len(hypotheses.refused)} were refused ({some})"


@flow(name="campaign", flow_run_name="campaign {params.campaign}")
def run_campaign(params: CampaignParams) -> LoopState:
    """Stages 1 to 4. Rounds go on until something is proven, or budget or ideas are used up.

    An adopted change needs a person and a rollout, so the round after an adoption starts from the baseline
    that the rollout leaves behind; within one campaign a further round happens only while nothing passed.

    Raises:
        PreconditionFailed: one of the six questions was answered with no; the answer says which.
        GateFailed: data did not pass a quality gate.
    """
    started_s = time.monotonic()
    state = LoopState(campaign=params.campaign)
    with ExitStack() as held:
        held.enter_context(steps.campaign_lease(params.target, params.campaign))
        pin = steps.pin_criteria(params.campaign, params.criteria_path)
        answers = steps.answer_preconditions(params, pin)
        steps.stop_unless_ready(answers)
        held.enter_context(sandbox_steps.sandbox_of(params.config))
        for number in range(1, params.rounds + 1):
            this = params if number == 1 else params.model_copy(update={"campaign": f"{params.campaign}-r{number}"})
            steps.pin_round(this.campaign, pin)
            seconds = dict(state.stage_seconds)
            clock = time.monotonic()

            def lap(stage: str, seconds: dict[str, float] = seconds) -> None:
                nonlocal clock
                seconds[stage] = seconds.get(stage, 0.0) + time.monotonic() - clock
                clock = time.monotonic()

            baseline = run_baseline(this, pin.criteria, pin.criteria_hash)
            lap("baseline")
            bottleneck = run_bottleneck(this, pin.criteria, baseline)
            lap("bottleneck")
            hypotheses = run_hypothesis(this, pin.criteria, baseline, bottleneck)
            lap("hypothesis")
            verdict = run_sandbox(this, pin.criteria, baseline, hypotheses, pin.pinned)
            lap("sandbox")
            steps.stop_if_criteria_changed(pin)
            plan, key = steps.draft_plan(this, pin, verdict, baseline), ""
            if plan is not None:
                for gate in steps.check_plan(verdict, plan):
                    publish.gate(this.campaign, gate)
                    stop_on(gate)
                plan, key = steps.keep_plan(this, plan)
            state = state.model_copy(
                update={
                    "round": number,
                    "stage_seconds": seconds,
                    "verdict": verdict,
                    "plan": plan,
                    "plan_key": key,
                    "outcome": verdict.judgement.outcome,
                }
            )
            if plan is not None:
                state = state.model_copy(update={"ended_because": "a change was proven and waits for approval"})
                break
            if not hypotheses.hypotheses:
                state = state.model_copy(update={"ended_because": _used_up(hypotheses)})
                break
            if time.monotonic() - started_s > params.max_wall_s:
                state = state.model_copy(update={"ended_because": "the time budget is used up"})
                break
        else:
            state = state.model_copy(update={"ended_because": f"all {params.rounds} rounds are done"})
        steps.record_campaign(params.target, params.campaign, state.outcome, state.ended_because, state.stage_seconds)
    publish.event("campaign.completed", params.campaign, outcome=state.outcome.value, plan=state.plan_key)
    return state
