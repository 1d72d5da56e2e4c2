"""The loads under which an engine is measured."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.replay.records import ReplayOptions

Workload = Literal["recorded", "saturating", "short_prompts", "long_prompts"]

STRATUM_OF: dict[Workload, str] = {"short_prompts": "short", "long_prompts": "long"}
"""Workloads that replay one stratum of the sample alone, and which."""


class WorkloadPlan(BaseModel):
    """How one workload is replayed (spec V4, V11)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: Workload
    options: ReplayOptions
    limit_s: float = Field(default=600.0, gt=0, description="a run that takes longer is ended, and is no measurement")
