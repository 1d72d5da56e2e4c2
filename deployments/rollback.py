"""`ratchet rollback`: weight 0 first and whatever else is true; then stable's configuration, where one is named."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from deployments.environment import PRODUCTION_STATE_DIR, state_dir
from infra.connect import open_store
from infra.engine.config import ServingConfig
from infra.errors import BadInput, RatchetError
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.stack.records import StackError
from infra.store import ObjectStore
from infra.traffic.fleet import LocalFleet
from infra.traffic.switch import EnvoySwitch, SwitchError, zero_weight_file
from tasks.canary import rollout as machine
from tasks.canary.records import RolloutState

MARK_TRIES = 20
WHERE = (
    "Set RATCHET_PRODUCTION_STATE_DIR to the folder that the rollouts use (RATCHET_STATE for an embedded stack) and "
    "repeat it now"
)


def rollout_store(switch_dir: Path) -> ObjectStore:
    """Where the rollouts' states lie: as for a rollout itself, and else beside the switch.

    Raises:
        RatchetError: no object store is known, or a setting is wrong.
    """
    if "RATCHET_S3_ENDPOINT_URL" in os.environ:
        return open_store()
    folders = dict.fromkeys((state_dir(), switch_dir))
    for folder in folders:
        if stack_addresses(StackPaths(folder)).s3:
            return open_stack_store(folder)
    raise StackError(f"no RATCHET_S3_*, and no object store was ever started in {' or '.join(map(str, folders))}")


def mark_rollouts(store: ObjectStore) -> Iterator[RolloutState]:
    """Write "roll back" into every rollout that is under way, however often a tick writes in between.

    Raises:
        RatchetError: the store does not answer, or a state could not be written.
    """
    for found in store.list("rollouts/"):
        if not found.key.endswith("/state.json"):
            continue
        for _ in range(MARK_TRIES):
            state, etag = store.get_record_with_etag(found.key, RolloutState)
            if not machine.under_way(state):
                break
            marked = state.model_copy(
                update={"intent": machine.ROLL_BACK, "reason": "rolled back by hand", "updated_s": time.time()}
            )
            if store.put_if_match(found.key, marked.model_dump_json(indent=1).encode(), etag) is not None:
                yield marked
                break
        else:
            raise RatchetError(f"rollout {found.key} is written faster than it can be marked", remedy="Repeat it")


def roll_back_now(switch_dir: Path, to: Path | None) -> Iterator[str]:
    """Yields what was done, line by line.

    Args:
        switch_dir: state folder of the stack whose Envoy is production's.
        to: JSON of the configuration that stable gets; None: what the marked rollout came from.

    Raises:
        BadInput: `to` is no configuration; the weight is 0 by then all the same.
        SwitchError: the weight could not be shown to be 0, or there is none, or another one may be needed.
    """
    runtime_file = StackPaths(switch_dir).runtime_file
    switch_found = runtime_file.exists()
    # First the switch, then the mark that stops every tick, and only then the watching, which takes its time.
    if switch_found:
        with suppress(OSError):  # the marks are written all the same; the watching tries again and says what is wrong
            zero_weight_file(runtime_file)
    config: ServingConfig | None = None
    marked: list[str] = []
    unmarked = ""
    try:
        for state in mark_rollouts(rollout_store(switch_dir)):
            marked.append(state.rollout_id[:12])
            yield f"rollout {state.rollout_id[:12]} is marked: its next tick restores {state.plan.baseline_hash[:12]}"
            config = state.plan.baseline_config
    except (RatchetError, OSError) as error:
        unmarked = str(error)
    if not switch_found:
        if not marked and not unmarked:
            yield f"no switch in {switch_dir} and no rollout under way: nothing to roll back"
            return
        why = (
            f"rollout {', '.join(marked)} is under way" if marked else f"whether one is needed is unknown ({unmarked})"
        )
        raise SwitchError(f"no switch in {switch_dir}, yet {why}: the canary may still serve", remedy=WHERE)
    if unmarked:
        yield f"the rollout's state could not be marked ({unmarked}); the weight is 0 all the same"
    report = EnvoySwitch.of_stack(switch_dir).rollback()
    yield f"canary at weight 0 in {switch_dir}, in force after {report.in_force_ms:.0f} ms"
    if marked and _may_be_another(switch_dir):
        raise SwitchError(
            f"weight 0 is in force in {switch_dir}, yet rollout {', '.join(marked)} lies in another stack's store: its "
            "canary may still serve",
            remedy=WHERE,
        )
    if to is not None:
        try:
            config = ServingConfig.model_validate_json(to.read_bytes())
        except (OSError, ValidationError) as error:
            raise BadInput(
                f"{to} is no serving configuration: {error}",
                remedy="The weight is 0 already; hand in the JSON of a ServingConfig",
            ) from None
    if config is not None:
        fleet = LocalFleet(ProductionSettings(state_dir=switch_dir))
        fleet.ensure("stable", config)
        yield f"stable serves configuration {config.config_hash()[:12]}"


def _may_be_another(switch_dir: Path) -> bool:
    """Whether the rollouts lie in a store that is not this stack's, and nobody named this switch as theirs."""
    named, store = os.environ.get(PRODUCTION_STATE_DIR), os.environ.get("RATCHET_S3_ENDPOINT_URL")
    return not named and store is not None and store != stack_addresses(StackPaths(switch_dir)).s3
