"""Addresses and keys that both sides need: the object store, Prometheus, the agent's endpoint."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from infra.settings.environment import EnvironmentSettings


class StoreSettings(EnvironmentSettings):
    """Read from RATCHET_S3_*."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_S3_", extra="forbid", frozen=True)

    endpoint_url: str
    bucket: str = "ratchet"
    access_key: str
    secret_key: SecretStr


class MetricsSettings(EnvironmentSettings):
    """Read from RATCHET_PROMETHEUS_*."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_PROMETHEUS_", extra="forbid", frozen=True)

    url: str
    timeout_s: float = 10.0


class AgentSettings(EnvironmentSettings):
    """Read from RATCHET_AGENT_*. Without a base URL the loop runs on rules, playbook and optimiser."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_AGENT_", extra="forbid", frozen=True)

    base_url: str = ""
    model: str = ""
    api_key: SecretStr = Field(default=SecretStr(""))
    max_tokens_total: int = 200_000
