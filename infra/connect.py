"""Opens the outside parts from the environment; a missing setting is named with its remedy."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from infra.errors import BadInput
from infra.settings.shared import AgentSettings, MetricsSettings, StoreSettings
from infra.store import ObjectStore

_Settings = TypeVar("_Settings", bound=BaseSettings)


def _read(kind: type[_Settings]) -> _Settings:
    try:
        return kind()
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        missing = ", ".join(f"{prefix}{'_'.join(str(p) for p in e['loc']).upper()}" for e in error.errors())
        raise BadInput(
            f"setting {missing} is missing or wrong",
            remedy="`ratchet stack up` prints the settings of the embedded stack (`eval $(ratchet stack env)`)",
        ) from None


def open_store() -> ObjectStore:
    """The object store of RATCHET_S3_*."""
    s = _read(StoreSettings)
    return ObjectStore(
        endpoint_url=s.endpoint_url,
        bucket=s.bucket,
        access_key=s.access_key,
        secret_key=s.secret_key.get_secret_value(),
    )


def metrics_settings() -> MetricsSettings:
    """Where Prometheus is."""
    return _read(MetricsSettings)


def agent_settings() -> AgentSettings:
    """The agent's endpoint; empty base_url when there is none."""
    return _read(AgentSettings)
