"""Opens the outside parts from the environment; a missing setting is named with its remedy."""

from __future__ import annotations

from infra.settings.shared import AgentSettings, MetricsSettings, StoreSettings
from infra.store import ObjectStore


def open_store() -> ObjectStore:
    """The object store of RATCHET_S3_*."""
    s = StoreSettings()
    return ObjectStore(
        endpoint_url=s.endpoint_url,
        bucket=s.bucket,
        access_key=s.access_key,
        secret_key=s.secret_key.get_secret_value(),
    )


def metrics_settings() -> MetricsSettings:
    """Where Prometheus is."""
    return MetricsSettings()


def agent_settings() -> AgentSettings:
    """The agent's endpoint; empty base_url when there is none."""
    return AgentSettings()
