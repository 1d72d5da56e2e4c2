"""Where the sandbox lives. Holds no way to production."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from infra.settings.environment import EnvironmentSettings


class SandboxSettings(EnvironmentSettings):
    """Read from RATCHET_SANDBOX_*."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_SANDBOX_", extra="forbid", frozen=True)

    work_dir: Path = Field(default=Path(".ratchet/sandbox"), description="logs and intermediate files of trials")
    slots: tuple[tuple[int, ...], ...] = Field(
        default_factory=lambda: tuple((core,) for core in range(min(2, os.cpu_count() or 1))),
        min_length=1,
        max_length=2,
        description="sets of cores on which one engine runs alone, e.g. [[0],[1]]: two of one shape measure both sides "
        "at once (duet), one by turns (slices)",
    )
    client_cores: tuple[int, ...] = Field(
        default=(), description="cores of the replay clients; empty: all, so that neither slot carries them alone"
    )
    port_from: int = Field(default=18200, description="first port tried for a sandbox engine")
    ready_timeout_s: float = 240
    accelerator: str = Field(default="cpu", description="accelerator model of the sandbox")
    accelerators: int = Field(default=1, ge=1, description="accelerators of one sandbox engine")
    memory_limit_bytes: float | None = Field(
        default=None, gt=0, description="memory that an engine may take; None on a CPU: the machine's"
    )

    @model_validator(mode="after")
    def _slots_are_alike(self) -> Self:
        cores = [core for slot in self.slots for core in slot]
        if len(set(cores)) < len(cores):
            raise ValueError(f"slots {self.slots} share a core")
        if len({len(slot) for slot in self.slots}) != 1 or not cores:
            raise ValueError(f"slots {self.slots} are not of one shape: name as many cores in each")
        return self
