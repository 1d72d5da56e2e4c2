"""What stage 1 hands on: the production baseline, and what the sandbox can tell."""

from __future__ import annotations

from pydantic import Field

from infra.engine.config import ServingConfig
from tasks.shared.paired import Estimate
from tasks.shared.records import Reading, Record, Target, Window


class MetricBaseline(Record):
    """One metric over the window, with the spread that belongs to it (spec B3)."""

    name: str
    reading: Reading
    spread_pct: float | None = Field(default=None, description="within-window spread, (max-min)/median in %")
    slices: tuple[Reading, ...] = Field(default=(), description="the same metric over equal parts of the window")
    week_before: Reading | None = None


class SampleRef(Record):
    """A traffic sample in S3 with what its manifest says."""

    key: str
    manifest_key: str
    sample_hash: str
    requests: int
    duration_s: float
    held_out: bool
    prefix_reuse: float | None
    strata: dict[str, int]
    long_share: float = Field(description="share of requests in the long stratum, 0 to 1")
    long_token_share: float = Field(description="share of prompt tokens in the long stratum, 0 to 1")
    prompt_tokens_avg: float
    notes: tuple[str, ...] = ()


class Calibration(Record):
    """What the sandbox can tell: two engines of one configuration measured against each other (spec B4)."""

    design: str = Field(default="", description="duet: both at once on two slots; slices: by turns on one")
    found: Estimate | None = Field(default=None, description="their ratio, whose truth is 1")
    planned_pairs: int | None = Field(default=None, description="pairs after which a gain of the target is told")
    pair_s: float = Field(default=0.0, ge=0, description="what a pair takes, seconds")
    campaign_s: float = Field(default=0.0, ge=0, description="what the trials will take, seconds")
    sentence: str = Field(default="", description="all this for people")


class Samples(Record):
    """The sample that the search uses, and the one that it never sees (spec V12)."""

    search: SampleRef
    held_out: SampleRef


class BaselineReport(Record):
    """Stage 1's result; production numbers come from Prometheus only (spec B1)."""

    target: Target
    campaign: str
    window: Window
    config: ServingConfig
    config_hash: str
    criteria_hash: str
    metrics: tuple[MetricBaseline, ...]
    accelerators: int = Field(default=1, ge=1, description="accelerators of one production replica")
    calibration: Calibration = Calibration()
    sample_key: str = ""
    samples: Samples | None = None
    notes: tuple[str, ...] = ()

    def metric(self, name: str) -> Reading:
        """The reading of `name`, or unknown when the baseline has none."""
        for metric in self.metrics:
            if metric.name == name:
                return metric.reading
        return Reading.unknown(f"the baseline holds no metric named {name}")
