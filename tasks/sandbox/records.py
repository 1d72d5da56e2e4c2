"""What stage 4 hands on: trials, and the verdict over them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.bench.workload import Workload
from infra.engine.config import ServingConfig
from tasks.hypothesis.records import Scalar
from tasks.shared.paired import Estimate, estimate
from tasks.shared.records import Judgement, OutcomeClass, Reading, Record, Target


class Conditions(Record):
    """What else the machine did meanwhile; it is recorded and voids nothing, since it hits both sides (spec V3)."""

    steal_pct: float | None = None
    foreign_cpu_pct: float | None = Field(default=None, description="CPU of other processes, % of the machine")
    cpu_mhz: float | None = Field(default=None, description="clock of the slowest core, where the machine tells")
    throttled: int | None = Field(default=None, description="times that the CPU slowed itself for its heat")
    cores: tuple[int, ...] = ()
    accelerator: str = ""


class RunReadings(Record):
    """What one side did in one span of one workload."""

    workload: Workload
    pair: int
    order: Literal["AB", "BA"] = Field(
        description="AB: the baseline stands on the first slot, or goes first on the one"
    )
    side: Literal["baseline", "candidate"]
    metrics: dict[str, Reading] = Field(
        description="by metric name: throughput_per_gpu, p50/p90/p99_latency, "
        "ttft_p99, tpot_p99, error_rate, coverage, prefix_hit_rate, …"
    )
    valid: bool
    invalid_reasons: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    requests_key: str = Field(default="", description="S3 key of the per-request results")


class MetricComparison(Record):
    """Candidate against baseline on one metric. One that is measured in pairs is judged by these alone."""

    metric: str
    baseline: Reading
    candidate: Reading
    change_pct: float | None = Field(
        description="in %: of the pairs' mean log ratio where there are pairs, else (candidate-baseline)/baseline"
    )
    change_abs: float | None = None
    low_pct: float | None = Field(default=None, description="interval of change_pct that holds at every look")
    high_pct: float | None = None
    paired: bool = Field(default=False, description="whether this metric is measured in pairs")
    log_ratios: tuple[float, ...] = Field(
        default=(), description="one a pair: ln(candidate / baseline) over both orders"
    )
    design: str = Field(default="", description="duet: both sides at once on two slots; slices: by turns on one")

    @property
    def estimate(self) -> Estimate | None:
        """What the pairs say; None without one."""
        return estimate(self.log_ratios)

    @property
    def pairs(self) -> int:
        """Pairs behind the ratio."""
        return len(self.log_ratios)


class CorrectnessReport(Record):
    """Outputs beside speed (spec V6)."""

    judgement: Judgement
    compared: int = 0
    equal: int = 0
    baseline_self_equal: int = Field(default=0, description="the baseline against itself, batch composition varied")
    needles_found: int = 0
    needles_asked: int = 0
    odd_inputs_same: bool | None = None


class TrialResult(Record):
    """One configuration measured beside the baseline, whatever came of it."""

    trial_id: str
    campaign: str
    target: Target
    hypothesis_ids: tuple[str, ...]
    changes: dict[str, Scalar]
    config: ServingConfig
    config_hash: str
    baseline_hash: str
    kind: Literal["single", "combination", "leave_one_out", "held_out", "a_a"]
    outcome_class: OutcomeClass
    engine_outcome: str = Field(default="measured", description="measured, or how the engine failed")
    engine_detail: str = ""
    design: str = Field(default="", description="duet or slices")
    runs: tuple[RunReadings, ...] = ()
    comparisons: tuple[MetricComparison, ...] = ()
    judgement: Judgement
    correctness: CorrectnessReport | None = None
    predicted_change_pct: float | None = Field(default=None, description="product of the members' gains, for synergy")
    sample_hash: str = ""
    held_out: bool = False
    replay_hash: str = ""
    log_key: str = ""
    peak_memory_bytes: float | None = None
    duration_s: float = 0.0
    measured_s: float = Field(default=0.0, description="of it in pairs of spans; the rest is starts and checks")
    objective: float | None = None

    def comparison(self, metric: str) -> MetricComparison | None:
        """The comparison of `metric`, if it was made."""
        return next((c for c in self.comparisons if c.metric == metric), None)


class SandboxVerdict(Record):
    """Stage 4's result: the winner measured once more on traffic that the search never saw (V12)."""

    campaign: str
    target: Target
    criteria_hash: str
    pinned: bool = Field(description="the criteria were the committed blob")
    judgement: Judgement
    winner: TrialResult | None = None
    held_out: TrialResult | None = None
    trials: tuple[TrialResult, ...] = ()
    synergy_pct: float | None = Field(default=None, description="measured minus predicted, percentage points")
