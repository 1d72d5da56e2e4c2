"""Where production lives. Only the canary stage and the production side may import this (a contract)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from infra.settings.environment import EnvironmentSettings


class ProductionSettings(EnvironmentSettings):
    """Read from RATCHET_PRODUCTION_*. Without `state_dir` there is no production to change."""

    model_config = SettingsConfigDict(
        env_prefix="RATCHET_PRODUCTION_",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,  # an empty state_dir would mean the folder that one happens to stand in
    )
    remedy: ClassVar[str] = (
        "RATCHET_PRODUCTION_STATE_DIR names the folder in which `ratchet stack up` keeps production's Envoy; "
        "the other RATCHET_PRODUCTION_* have defaults"
    )

    state_dir: Path = Field(description="state folder of the stack whose switch and replicas are production's")
    stable_cores: tuple[int, ...] = (1,)
    canary_cores: tuple[int, ...] = (0,)
    port_from: int = Field(default=18100, description="first port tried for a production replica")
    ready_timeout_s: float = 240
