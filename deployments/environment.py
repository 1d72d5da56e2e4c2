"""Which settings a run gets: the sandbox's, production's, never both sides' rights in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from infra.stack.files import stack_addresses, stack_credentials
from infra.stack.paths import StackPaths
from infra.stack.records import StackError

Side = Literal["sandbox", "production", "agent"]
PRODUCTION_STATE_DIR = "RATCHET_PRODUCTION_STATE_DIR"


def state_dir() -> Path:
    """RATCHET_STATE, or .ratchet below the present folder."""
    return Path(os.environ.get("RATCHET_STATE", ".ratchet")).absolute()


def production_state_dir() -> Path:
    """Where the switch of the rollouts lies: RATCHET_PRODUCTION_STATE_DIR, or the embedded stack's folder."""
    named = os.environ.get(PRODUCTION_STATE_DIR)
    return Path(named).absolute() if named else state_dir()


def embedded_settings(state: Path, side: Side) -> dict[str, str]:
    """The settings of one side of the embedded stack as environment variables.

    `sandbox` and `production` may write results; `agent` has the read-only key. Only `production` knows where the
    switch and the replicas are.

    Raises:
        StackError: no stack was ever started in `state`.
    """
    addresses = stack_addresses(StackPaths(state))
    if not addresses.s3:
        raise StackError(
            f"no stack was ever started in {state}",
            remedy="Start one: `ratchet stack up`. For a store of your own set RATCHET_S3_* (docs/settings.md)",
        )
    keys = stack_credentials(StackPaths(state))
    key = keys.agent if side == "agent" else keys.admin
    settings = {
        "RATCHET_STATE": str(state),
        "RATCHET_S3_ENDPOINT_URL": addresses.s3,
        "RATCHET_S3_BUCKET": "ratchet",
        "RATCHET_S3_ACCESS_KEY": key.access_key,
        "RATCHET_S3_SECRET_KEY": key.secret_key.get_secret_value(),
        "RATCHET_PROMETHEUS_URL": addresses.prometheus,
        "RATCHET_SANDBOX_WORK_DIR": str(state / "sandbox"),
    }
    if addresses.prefect:
        settings["PREFECT_API_URL"] = addresses.prefect
        settings["PREFECT_HOME"] = str(state / "prefect-client")
    if side == "production":
        settings[PRODUCTION_STATE_DIR] = str(state)
    settings |= {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "GX_ANALYTICS_ENABLED": "false",
    }
    return settings


def child_environment(state: Path, side: Side) -> dict[str, str]:
    """This process's environment without the other side's settings, plus those of `side`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RATCHET_PRODUCTION_", "RATCHET_S3_"))}
    return {**kept, **embedded_settings(state, side)}
