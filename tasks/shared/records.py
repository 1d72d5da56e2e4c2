"""Types that every stage shares. Frozen, strict, pure."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.readings import Reading

__all__ = ["Criteria", "Judgement", "Outcome", "OutcomeClass", "Reading", "Reason", "Record", "Target"]


class Record(BaseModel):
    """Base of every record: unknown keys are refused, because a misspelt key that vanishes is a wrong
    number later."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def canonical_json(self) -> bytes:
        """The record as JSON with sorted keys: equal records give equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    def content_hash(self) -> str:
        """sha256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.canonical_json()).hexdigest()


class Outcome(StrEnum):
    """What a judgement can be. Only PASS moves forward."""

    PASS = "PASS"  # noqa: S105 - an outcome, not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_DATA = "NO_DATA"
    ERROR = "ERROR"


class Reason(Record):
    """Why an outcome was reached: both numbers and their unit, and a sentence for people."""

    rule: str = Field(description="the rule or metric that spoke, e.g. p99_latency")
    outcome: Outcome
    text: str = Field(description="one sentence that quotes both numbers and their units")
    observed: float | None = None
    limit: float | None = None
    unit: str = ""


class Judgement(Record):
    """An outcome and all the reasons that led to it."""

    outcome: Outcome
    reasons: tuple[Reason, ...] = ()


class OutcomeClass(StrEnum):
    """What became of a trial (spec V8). Only a measured trial may be compared."""

    EFFECTIVE = "effective"
    NO_EFFECT = "no effect"
    SIDE_EFFECT = "side effect"
    REGRESSION = "regression"
    WRONG_OUTPUT = "wrong output"
    INVALID_CONFIGURATION = "invalid configuration"
    INFEASIBLE = "infeasible"
    UNSTABLE = "unstable"
    UNVERIFIED = "unverified"
    NOT_RUN = "not run"


class Target(Record):
    """What criteria, lease, ledger and baselines belong to: a model on a pool."""

    model: str
    pool: str

    @property
    def key(self) -> str:
        """The target as one path segment of an object key."""
        return f"{self.model}@{self.pool}".replace("/", "_")


class Window(Record):
    """A stretch of time, seconds since the epoch."""

    start_s: float
    end_s: float


class PrimaryMetric(Record):
    """A metric that a change must move by at least `target_pct` (sign included) to be effective."""

    name: str
    direction: Literal["higher", "lower"]
    target_pct: float = Field(description="relative change to reach, per cent; negative for lower-is-better")


class GuardMetric(Record):
    """A metric that must not get worse than its limit.

    Exactly one limit is set: `max_increase_pct` (relative to the baseline), `max_increase_abs`
    (in the metric's unit; error_rate's is percentage points) or `max_value` (absolute).
    """

    name: str
    direction: Literal["higher", "lower"] = "lower"
    max_increase_pct: float | None = None
    max_increase_abs: float | None = None
    max_value: float | None = None
    required: bool = True
    absolute_floor: float = Field(default=0.0, description="baselines at or below it are compared absolutely")


class CanaryStep(Record):
    """One step of the rollout."""

    share: float = Field(gt=0, le=1, description="share of conversations on the canary")
    duration_s: float = Field(gt=0)
    stop_on: tuple[str, ...] = Field(description="guards that are judged in this step; `any` for all")
    min_samples: int = Field(ge=1, description="fewest canary requests that may be judged")
    max_hold_s: float = Field(gt=0, description="how long the step may wait for data before rolling back")
    comparable_load: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="canary load per replica over stable's "
        "from which a latency that did not get worse is information (spec R6)",
    )


class KnobLimit(Record):
    """A rail of one knob, set by people."""

    max_factor: float | None = Field(default=None, description="largest factor per round from the baseline")
    minimum: float | None = None
    maximum: float | None = None


class ObjectiveWeights(Record):
    """Weights of the ranking inside the search (spec C5). Ranking never replaces the criteria."""

    throughput: float = 1.0
    ttft_p99: float = 0.3
    tpot_p99: float = 0.3
    memory_penalty: float = 0.5
    memory_threshold: float = Field(default=0.9, description="share of memory above which the penalty starts")


class SamplingPolicy(Record):
    """How the campaign measures; a demo profile gives some of it up and `gives_up` says what."""

    span_s: float = Field(default=60.0, gt=0, description="length of one span of a saturated loop; a pair has two")
    most_pairs: int = Field(
        default=27, ge=3, description="pairs of spans after which a measurement that has not answered is unstable"
    )
    smallest_gain_pct: float = Field(
        default=5.0, gt=0, description="a change is effective when its whole interval is better than this"
    )
    warmup_requests: int = Field(default=200, ge=0)
    sample_requests: int = Field(default=1000, ge=8)
    saturating_concurrency: int = Field(default=64, ge=1)
    workloads: tuple[Literal["short_prompts", "long_prompts"], ...] = Field(
        default=("short_prompts", "long_prompts"),
        description="loads beside the mix under which throughput may not get worse (spec V4)",
    )
    max_candidates: int = Field(default=5, ge=1)
    max_combinations: int = Field(default=4, ge=0)
    short_below_tokens: int = 512
    medium_below_tokens: int = 4096
    min_requests_per_stratum: int = Field(default=1, ge=0)


class Windows(Record):
    """Comparison windows of production readings."""

    baseline_s: float = Field(default=86_400, gt=0)
    compare_with_week_before: bool = True
    min_latency_samples: int = Field(default=500, ge=5, description="fewest requests behind a P99 that may judge")
    saturated_waiting: float = Field(
        default=1, description="a second counts as saturated when at least this many requests wait in the queue"
    )


class Criteria(Record):
    """The machine's part of the criteria file (spec C1): what counts as better, written by people."""

    version: Literal[1]
    profile: Literal["production", "demo"]
    throughput_is: Literal["saturating_load", "goodput"] = Field(
        description="which reading `throughput_per_gpu` is (spec V11)"
    )
    price_per_accelerator_hour: float = Field(gt=0, description="currency units per accelerator hour")
    primary: tuple[PrimaryMetric, ...] = Field(min_length=1)
    guards: tuple[GuardMetric, ...] = Field(min_length=1)
    windows: Windows
    canary_steps: tuple[CanaryStep, ...] = Field(min_length=1)
    passes_to_advance: int = Field(default=2, ge=1)
    knobs: dict[str, KnobLimit] = Field(default_factory=dict)
    default_max_drift_factor: float = Field(default=1.3, gt=1)
    weights: ObjectiveWeights = ObjectiveWeights()
    measuring: SamplingPolicy = SamplingPolicy()
    approval_expires_s: float = Field(default=86_400, gt=0)
    demo_policy_approves: bool = False
    gives_up: tuple[str, ...] = Field(default=(), description="what a demo profile does less of, in words")


class LedgerEntry(Record):
    """One line of the trajectory (spec A1): a proposal and everything that became of it."""

    entry_id: str
    at_s: float
    target: Target
    campaign: str
    kind: Literal["trial", "refused", "plan", "approval", "rollout", "campaign", "drill"]
    knob: str = ""
    value: bool | int | float | str | None = None
    changes: dict[str, bool | int | float | str] = Field(default_factory=dict)
    outcome_class: str = ""
    reason: str = ""
    throughput_change_pct: float | None = None
    production_change_pct: float | None = None
    reviewer_s: float | None = Field(default=None, description="from plan to approval")
    drill_ms: float | None = Field(default=None, description="a drill's: decision to last new request on the canary")
    record_key: str = Field(default="", description="S3 key of the full record")
    engine_build: str = ""
    baseline_hash: str = ""
    workload: str = ""
    stage_seconds: dict[str, float] = Field(default_factory=dict)
