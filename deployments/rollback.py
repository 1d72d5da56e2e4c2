"""`ratchet rollback`: weight 0 first and whatever else is true; then stable's configuration, where one is named."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from infra.connect import open_store
from infra.engine.config import ServingConfig
from infra.errors import BadInput, RatchetError
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store
from infra.stack.paths import StackPaths
from infra.traffic.fleet import LocalFleet
from infra.traffic.switch import EnvoySwitch, zero_weight_file
from tasks.canary import rollout as machine
from tasks.canary.records import Phase, RolloutState

MARK_TRIES = 20
ENDED = frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.REFUSED})
"""Where nothing is left to take back. A rollback that failed may be tried again."""


def mark_rollouts(state_dir: Path) -> Iterator[RolloutState]:
    """Write "roll back" into every rollout that is under way, however often a tick writes in between.

    Raises:
        RatchetError: the store does not answer, or a state could not be written.
    """
    store = open_store() if "RATCHET_S3_ENDPOINT_URL" in os.environ else open_stack_store(state_dir)
    for found in store.list("rollouts/"):
        if not found.key.endswith("/state.json"):
            continue
        for _ in range(MARK_TRIES):
            state, etag = store.get_record_with_etag(found.key, RolloutState)
            if state.phase in ENDED or state.phase is Phase.PREPARED:
                break
            marked = state.model_copy(
                update={"intent": machine.ROLL_BACK, "reason": "rolled back by hand", "updated_s": time.time()}
            )
            if store.put_if_match(found.key, marked.model_dump_json(indent=1).encode(), etag) is not None:
                yield marked
                break
        else:
            raise RatchetError(f"rollout {found.key} is written faster than it can be marked", remedy="Repeat it")


def roll_back_now(state_dir: Path, to: Path | None) -> Iterator[str]:
    """Yields what was done, line by line.

    Raises:
        BadInput: `to` is no configuration; the weight is 0 by then all the same.
        SwitchError: the weight could not be shown to be 0.
    """
    if not StackPaths(state_dir).runtime_file.exists():
        yield f"no switch in {state_dir}: nothing to roll back"
        return
    # First the switch, then the mark that stops every tick, and only then the watching, which takes its time.
    zero_weight_file(StackPaths(state_dir).runtime_file)
    config: ServingConfig | None = None
    try:
        for state in mark_rollouts(state_dir):
            yield f"rollout {state.rollout_id[:12]} is marked: its next tick restores {state.plan.baseline_hash[:12]}"
            config = state.plan.baseline_config
    except RatchetError as error:
        yield f"the rollout's state could not be marked ({error}); the weight is 0 all the same"
    report = EnvoySwitch.of_stack(state_dir).rollback()
    yield f"canary at weight 0, in force after {report.in_force_ms:.0f} ms"
    if to is not None:
        try:
            config = ServingConfig.model_validate_json(to.read_bytes())
        except (OSError, ValidationError) as error:
            raise BadInput(
                f"{to} is no serving configuration: {error}",
                remedy="The weight is 0 already; hand in the JSON of a ServingConfig",
            ) from None
    if config is not None:
        fleet = LocalFleet(ProductionSettings(state_dir=state_dir))
        fleet.ensure("stable", config)
        yield f"stable serves configuration {config.config_hash()[:12]}"
