"""What stage 1 hands on: the production baseline and the sandbox's noise floor."""

from __future__ import annotations

from pydantic import Field

from infra.engine.config import ServingConfig
from tasks.shared.records import Reading, Record, Target, Window


class MetricBaseline(Record):
    """One metric over the window, with the spread that belongs to it (spec B3)."""

    name: str
    reading: Reading
    spread_pct: float | None = Field(default=None, description="within-window spread, (max-min)/median in %")
    slices: tuple[Reading, ...] = Field(default=(), description="the same metric over equal parts of the window")
    week_before: Reading | None = None


class NoiseFloor(Record):
    """The smallest difference of one metric that may be called one: from an A/A run (spec B4)."""

    metric: str
    floor_pct: float | None = Field(description="relative A/A difference, %; None where it could not be taken")
    floor_abs: float | None = None
    pairs: int = Field(description="A/A pairs behind it")


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
    """How finely the sandbox can tell differences, and how long its runs are for that (spec B4)."""

    noise_floors: tuple[NoiseFloor, ...] = ()
    passes: int = Field(default=1, ge=1, description="how often a run in closed loop replays the sample")


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
    noise_floors: tuple[NoiseFloor, ...] = ()
    passes: int = Field(default=1, ge=1, description="how often a run in closed loop replays the sample")
    sample_key: str = ""
    samples: Samples | None = None
    notes: tuple[str, ...] = ()

    def metric(self, name: str) -> Reading:
        """The reading of `name`, or unknown when the baseline has none."""
        for metric in self.metrics:
            if metric.name == name:
                return metric.reading
        return Reading.unknown(f"the baseline holds no metric named {name}")

    def floor_pct(self, name: str) -> float | None:
        """The A/A floor of `name`, per cent."""
        return next((f.floor_pct for f in self.noise_floors if f.metric == name), None)
