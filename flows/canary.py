"""Stage 5: an approved plan into production, one tick after the other."""

from __future__ import annotations

import time
from typing import Literal

from prefect import flow
from pydantic import Field

from flows import publish
from tasks.canary import drill, ending, steps
from tasks.canary.records import CanaryVerdict, DrillFigures, Phase, RolloutState
from tasks.shared.records import Record, Window

TERMINAL = frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.ROLLBACK_FAILED, Phase.REFUSED})


class RolloutParams(Record):
    """One rollout of an approved plan."""

    plan_key: str = Field(description="S3 key of the plan")
    tick_s: float = Field(default=2.0, gt=0, description="pause between two ticks when they follow each other")
    mode: Literal["tick", "follow"] = Field(default="tick", description="one tick, or all until a terminal state")
    lease_ttl_s: float = Field(default=180.0, gt=0, description="three times the schedule of the ticks")
    verify_window: Window | None = Field(default=None, description="production window after the promotion")


@flow(name="rollout-tick", flow_run_name="rollout {params.plan_key}")
def run_rollout(params: RolloutParams) -> RolloutState:
    """One tick (read, judge, act, read back), or in `follow` mode all ticks until the rollout needs something
    from outside: a person's approval, or production's window after the promotion."""
    state = steps.tick(params.plan_key, params.lease_ttl_s, params.verify_window)
    while params.mode == "follow" and state.phase not in TERMINAL and state.phase is not Phase.VERIFYING:
        if state.phase is Phase.PREPARED and state.reason:
            break
        time.sleep(params.tick_s)
        state = steps.tick(params.plan_key, params.lease_ttl_s)
    if state.phase in TERMINAL:
        close_rollout(params.plan_key, state)
    return state


def close_rollout(plan_key: str, state: RolloutState) -> CanaryVerdict:
    """Complete verdict and ledger, hang up the timeline, tell the orchestrator that the next round may start."""
    verdict = ending.conclude(plan_key, state)
    publish.canary(verdict)
    publish.event(
        "rollout.completed" if state.phase is Phase.COMPLETED else "rollout.ended",
        state.plan.campaign,
        phase=state.phase.value,
    )
    return verdict


@flow(name="rollback-drill", validate_parameters=False)
def run_drill(plan_key: str, share: float = 0.5) -> DrillFigures:
    """Deploy the approved canary, give it a share of the traffic, take it back, and say how long that took."""
    return drill.drill(plan_key, share)
