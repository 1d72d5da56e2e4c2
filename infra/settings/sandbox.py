"""Where the sandbox lives. Holds no way to production."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from infra.settings.environment import EnvironmentSettings


class SandboxSettings(EnvironmentSettings):
    """Read from RATCHET_SANDBOX_*."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_SANDBOX_", extra="forbid", frozen=True)

    work_dir: Path = Field(default=Path(".ratchet/sandbox"), description="logs and intermediate files of trials")
    engine_cores: tuple[int, ...] = Field(default=(1,), description="cores of a sandbox engine")
    client_cores: tuple[int, ...] = Field(default=(0,), description="cores of the replay client")
    port_from: int = Field(default=18200, description="first port tried for a sandbox engine")
    ready_timeout_s: float = 240
    accelerator: str = Field(default="cpu", description="accelerator model of the sandbox")
    accelerators: int = Field(default=1, ge=1, description="accelerators of one sandbox engine")
    memory_limit_bytes: float | None = Field(
        default=None, gt=0, description="memory that an engine may take; None on a CPU: the machine's"
    )
