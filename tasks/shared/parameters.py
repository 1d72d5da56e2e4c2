"""What a campaign is started with. Frozen, documented, unknown keys refused; never a secret."""

from __future__ import annotations

from pydantic import Field, model_validator

from infra.engine.config import ServingConfig
from tasks.shared.records import Record, Target, Window


class CampaignParams(Record):
    """One campaign: stages 1 to 4 for one target, ending in a plan that waits for a person."""

    campaign: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{2,60}$", description="its name; a rerun with it resumes")
    target: Target
    criteria_path: str = Field(description="criteria file inside a git checkout; read at HEAD")
    config: ServingConfig = Field(description="what production serves with now")
    window: Window = Field(description="production window of the baseline, seconds since the epoch")
    traffic_prefix: str = Field(description="S3 prefix of the gateway's logs")
    role: str = Field(default="stable", description="label `role` of production's replicas in Prometheus")
    sample_window: Window | None = Field(
        default=None,
        description="stretch that the search's sample is taken from "
        "whole; None: `window`, thinned to the criteria's number of requests",
    )
    held_out_window: Window | None = Field(
        default=None,
        description="another stretch, best another day, for the held-out sample; needed with `sample_window`",
    )
    time_scale: float = Field(default=1.0, gt=0, description="factor on recorded arrivals: below 1 is denser")
    rounds: int = Field(default=1, ge=1, le=20)
    max_wall_s: float = Field(default=6 * 3600, gt=0)
    seed: int = Field(default=1, ge=0)
    production_shape: str = Field(
        default="cpu x1",
        pattern=r"^\S.* x[1-9][0-9]*$",
        description="accelerator model and count of a replica, e.g. `H100-80GB x8`",
    )

    @property
    def accelerators(self) -> int:
        """Accelerators of one production replica."""
        return int(self.production_shape.rsplit("x", 1)[1])

    @model_validator(mode="after")
    def _window_is_ordered(self) -> CampaignParams:
        if self.window.end_s <= self.window.start_s:
            raise ValueError(
                f"window ends at {self.window.end_s} before it starts at {self.window.start_s}; "
                "both are seconds since the epoch"
            )
        if (self.sample_window is None) != (self.held_out_window is None):
            raise ValueError("sample_window and held_out_window belong together: name both or neither")
        return self
