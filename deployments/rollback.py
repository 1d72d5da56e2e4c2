"""`ratchet rollback`: weight 0 first and whatever else is true; then stable's configuration, where one is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from infra.engine.config import ServingConfig
from infra.errors import BadInput, RatchetError
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store
from infra.stack.paths import StackPaths
from infra.traffic.fleet import LocalFleet
from infra.traffic.switch import EnvoySwitch, zero_weight_file
from tasks.canary import rollout as machine
from tasks.canary.records import RolloutState


def roll_back_now(state_dir: Path, to: Path | None) -> Iterator[str]:
    """Yields what was done, line by line.

    Raises:
        BadInput: `to` is no configuration; the weight is 0 by then all the same.
        SwitchError: the weight could not be shown to be 0.
    """
    if not StackPaths(state_dir).runtime_file.exists():
        yield f"no switch in {state_dir}: nothing to roll back"
        return
    zero_weight_file(StackPaths(state_dir).runtime_file)
    report = EnvoySwitch.of_stack(state_dir).rollback()
    yield f"canary at weight 0, in force after {report.in_force_ms:.0f} ms"
    config: ServingConfig | None = None
    if to is not None:
        try:
            config = ServingConfig.model_validate_json(to.read_bytes())
        except (OSError, ValidationError) as error:
            raise BadInput(
                f"{to} is no serving configuration: {error}",
                remedy="The weight is 0 already; hand in the JSON of a ServingConfig",
            ) from None
    try:
        store = open_stack_store(state_dir)
        for found in store.list("rollouts/"):
            if not found.key.endswith("/state.json"):
                continue
            state, etag = store.get_record_with_etag(found.key, RolloutState)
            if state.phase in machine.TERMINAL:
                continue
            after = machine.intend_rollback(state, time.time(), "rolled back by hand", token=state.token)
            if after is state:
                continue
            if store.put_if_match(found.key, after.model_dump_json(indent=1).encode(), etag) is not None:
                restored = state.plan.baseline_hash[:12]
                yield f"rollout {state.rollout_id[:12]} is marked: its next tick restores {restored}"
                config = config or state.plan.baseline_config
    except RatchetError as error:
        yield f"the rollout's state could not be marked ({error}); the weight is 0 all the same"
    if config is not None:
        fleet = LocalFleet(ProductionSettings(state_dir=state_dir))
        fleet.ensure("stable", config)
        yield f"stable serves configuration {config.config_hash()[:12]}"
