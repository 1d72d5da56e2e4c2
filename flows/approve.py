"""Approval as a form in the UI: shows the plan, waits for a typed answer, has no default."""

from __future__ import annotations

from typing import Literal

from prefect import flow, suspend_flow_run
from prefect.input import RunInput
from pydantic import ConfigDict, Field

from tasks.canary import approval
from tasks.canary.records import Approval


class Decision(RunInput):
    """What a person answers. No field has a default: an empty answer is no answer."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "reject"]
    config_hash_first_8: str = Field(description="typed from the plan above, as proof that it was read")
    by: str = Field(min_length=1, description="your name")


@flow(name="approve", flow_run_name="approve {plan_key}")
def run_approve(plan_key: str, wait_s: int = 86_400) -> Approval:
    """Show one plan and wait for a decision about exactly it.

    The run is suspended meanwhile: no process waits, and a worker that is started anew loses no question. The
    answer starts it again from the top, so nothing but reading stands before the question. It is started from its
    deployment; without one there is nothing to start again, and `ratchet approve` asks at the command line instead.

    Args:
        plan_key: S3 key of the plan, campaigns/NAME/plan.json.
        wait_s: seconds after which an answer comes too late.

    Raises:
        BadInput: there is no such plan, the hash typed is not the plan's, or the plan was decided before.
    """
    plan = approval.load_plan(plan_key)
    answer = suspend_flow_run(
        wait_for_input=Decision.with_initial_data(description=approval.describe(plan)), timeout=wait_s
    )
    approval.same_configuration(plan, answer.config_hash_first_8)
    return approval.decide(plan, answer.decision, answer.by)
