"""What stage 5 works with: plan, approval, state of a rollout, readings, verdict."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from infra.engine.config import ServingConfig
from tasks.shared.records import CanaryStep, Judgement, Reading, Record, Target, Window


class RolloutPlan(Record):
    """What a person is asked to approve. Built only by `rules.rollout_plan` from a passing verdict."""

    plan_id: str
    target: Target
    campaign: str
    config: ServingConfig
    config_hash: str
    baseline_config: ServingConfig
    baseline_hash: str
    changes: dict[str, bool | int | float | str]
    criteria_hash: str
    verdict_hash: str
    expected_gain_pct: float
    discount_pct: float = Field(default=0.0, description="percentage points that were taken off for that")
    risks: tuple[str, ...]
    steps: tuple[CanaryStep, ...]
    created_s: float


class Approval(Record):
    """A person's yes or no to exactly one plan."""

    plan_hash: str
    config_hash: str
    decision: Literal["approve", "reject"]
    by: str
    at_s: float
    expires_s: float


class ArmReadings(Record):
    """One arm over one window. Load is known, so that emptiness is not taken for speed (spec R6)."""

    requests: Reading
    load_per_replica: Reading = Field(description="requests per second and replica")
    errors: Reading = Field(description="5xx, resets, finish reasons error and abort")
    slow: Reading = Field(description="requests slower than the bound of `slow_bound_ms`")
    slow_bound_ms: float | None = Field(description="an existing histogram bound, or None when none fits")
    ttft_p99: Reading
    tpot_p99: Reading
    latency_p99: Reading
    oom_count: Reading
    engine_up: Reading


class CanaryReadings(Record):
    """Stable and canary over the same window (spec R4)."""

    start_s: float
    end_s: float
    stable: ArmReadings
    canary: ArmReadings


class Phase(StrEnum):
    """States of a rollout. The last four are terminal."""

    PREPARED = "prepared"
    DEPLOYING = "deploying"
    STEP = "step"
    PROMOTING = "promoting"
    VERIFYING = "verifying"
    COMPLETED = "completed"
    ROLLED_BACK = "rolled back"
    ROLLBACK_FAILED = "rollback failed"
    REFUSED = "refused"


class StepDecision(Record):
    """One tick's decision in one step."""

    step: int
    share: float
    at_s: float
    judgement: Judgement
    action: Literal["advance", "hold", "roll_back"]
    readings: CanaryReadings | None = None
    smallest_excludable_harm: str = Field(description="the smallest harm this step can see at its traffic")


class RolloutState(Record):
    """The state machine in S3; every tick writes a new version by compare-and-swap."""

    rollout_id: str
    plan: RolloutPlan
    phase: Phase
    step: int = 0
    step_started_s: float = 0.0
    passes: int = 0
    token: int = Field(description="fencing token of the lease under which this was written")
    intent: str = Field(default="", description="the effect about to be made; empty once it was verified")
    decisions: tuple[StepDecision, ...] = ()
    reason: str = ""
    rollback_ms: float | None = Field(
        default=None,
        description="decision to the last new request on the canary; after a kill or a failed try, from the next try",
    )
    updated_s: float = 0.0


class Verification(Record):
    """Production before the rollout and after the promotion; written once, before the state that follows from it."""

    window: Window
    judgement: Judgement
    before: dict[str, Reading]
    after: dict[str, Reading]


class DrillFigures(Record):
    """How fast the switch went back in a drill."""

    decision_to_last_request_ms: float
    in_force_ms: float
    canary_requests_after: int = Field(description="requests that the canary got after the switch was in force")


class CanaryVerdict(Record):
    """Stage 5's result."""

    rollout_id: str
    target: Target
    judgement: Judgement
    phase: Phase
    decisions: tuple[StepDecision, ...]
    production_before: dict[str, Reading] = Field(default_factory=dict)
    production_after: dict[str, Reading] = Field(default_factory=dict)
    production_change_pct: float | None = Field(default=None, description="throughput in saturated windows")
    rollback_ms: float | None = None
