"""Production replicas on this host: one `stable`, one `canary`, each pinned to its own cores.

A replica outlives the process that started it; what was started is recorded in a file beside the switch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict

from infra.engine import processes
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.environment import home
from infra.engine.launch import Engine, StartFailed, start_engine, stop, sweep_orphans, wait_ready
from infra.engine.legal import check
from infra.errors import RatchetError
from infra.settings.production import ProductionSettings
from infra.stack.atomic import replace_file
from infra.stack.paths import StackPaths
from infra.stack.ports import port_is_free
from infra.stack.targets import set_targets
from infra.traffic.draining import DRAIN_S, wait_until_drained
from infra.traffic.switch import EnvoySwitch

LOG = logging.getLogger("ratchet.fleet")
Role = Literal["stable", "canary"]
ROLES: tuple[Role, ...] = ("stable", "canary")


class FleetError(RatchetError):
    """A replica did not come up or could not be replaced."""


class Replica(BaseModel):
    """A running replica as recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role
    config: ServingConfig
    config_hash: str
    engine_id: str
    nonce: str
    pid: int
    port: int
    log: Path


def _owner(state_dir: Path) -> str:
    return f"ratchet-production:{state_dir.absolute()}"


class LocalFleet:
    """Starts, finds and ends the replicas of one stack."""

    def __init__(self, settings: ProductionSettings) -> None:
        self._settings = settings
        self._state = settings.state_dir
        self._paths = StackPaths(settings.state_dir)

    def _file(self, role: Role) -> Path:
        return self._state / "production" / f"{role}.json"

    def current(self, role: Role) -> Replica | None:
        """The recorded replica when its process lives."""
        try:
            found = Replica.model_validate_json(self._file(role).read_text())
            process = psutil.Process(found.pid)
            # By its mark and not by its create time, which moves when the machine's clock is set.
            alive = process.status() != psutil.STATUS_ZOMBIE and processes.has_mark(
                process, processes.ID_VARIABLE, found.engine_id
            )
        except (FileNotFoundError, ValueError, psutil.Error):
            return None
        return found if alive else None

    def alive(self, role: Role) -> bool:
        """Whether the replica's process lives."""
        return self.current(role) is not None

    def serves(self, role: Role, config: ServingConfig) -> bool:
        """Whether the role is served by exactly this configuration."""
        found = self.current(role)
        return found is not None and found.config_hash == config.config_hash()

    def address(self, role: Role) -> tuple[str, int]:
        """Host and port of the replica.

        Raises:
            FleetError: it does not run.
        """
        found = self.current(role)
        if found is None:
            raise FleetError(
                f"no {role} replica runs in {self._state}",
                remedy="A rollout starts the canary; `ratchet rollback --to CONFIG.json` starts stable",
            )
        return "127.0.0.1", found.port

    def last_words(self, role: Role) -> str:
        """The end of the replica's log, in one line."""
        try:
            found = Replica.model_validate_json(self._file(role).read_text())
            lines = [line for line in found.log.read_text(errors="replace").splitlines() if line.strip()]
        except (OSError, ValueError):
            return "no log"
        return lines[-1][:300] if lines else "its log is empty"

    def ensure(self, role: Role, config: ServingConfig, *, renew: Callable[[], None] | None = None) -> Replica:
        """The role served by `config`: nothing happens when it is; else a new replica is started beside the old one,
        Envoy and Prometheus are pointed at it once it has answered, and the old one is ended when Envoy has let it go.

        A replica is recorded when it is ready, and not before: what a killed start left behind is ended by the next
        call, and never taken for a replica that serves.

        Raises:
            FleetError: the new replica did not come up; the old one serves on.
        """
        switch = EnvoySwitch.of_stack(self._state)
        self._end_unrecorded(renew)
        found = self.current(role)
        old: Replica | None = None
        if found is None or found.config_hash != config.config_hash():
            old, found = found, self._start(role, config, renew)
            self._file(role).parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(role), found.model_dump_json(indent=1))
        if switch.endpoints(role) != [("127.0.0.1", found.port)]:
            switch.set_endpoint(role, "127.0.0.1", found.port)
        set_targets(self._paths, "engines", [f"127.0.0.1:{found.port}"], {"role": role})
        if old is not None and not wait_until_drained(self._paths, old.port, renew=renew):
            LOG.warning("the replaced %s replica still had streams after %d s; they are cut", role, DRAIN_S)
        self._end_unrecorded(renew)
        return found

    def _recorded_ids(self) -> set[str]:
        found = set()
        for role in ROLES:
            with suppress(OSError, ValueError):
                found.add(Replica.model_validate_json(self._file(role).read_text()).engine_id)
        return found

    def _end_unrecorded(self, renew: Callable[[], None] | None) -> None:
        """End every engine of this stack that no role is recorded to be served by."""
        kept = self._recorded_ids()

        def strays() -> list[psutil.Process]:
            return [
                process
                for process in processes.of_owner(_owner(self._state))
                if not any(processes.has_mark(process, processes.ID_VARIABLE, known) for known in kept)
            ]

        if strays() and (left := processes.end(strays, grace_s=10.0, meanwhile=renew)):
            raise FleetError(f"replaced engines outlived SIGKILL: pid {', '.join(str(p.pid) for p in left)}")

    def _start(self, role: Role, config: ServingConfig, renew: Callable[[], None] | None) -> Replica:
        target = home()
        catalogue = load_catalogue(target.knobs)
        if violations := check(config, catalogue):
            raise FleetError(
                f"{role} cannot serve this configuration: " + "; ".join(f"{v.rule}: {v.message}" for v in violations)
            )
        cores = self._settings.stable_cores if role == "stable" else self._settings.canary_cores
        log = self._state / "logs" / f"{role}-{config.config_hash()[:8]}-{time.strftime('%H%M%S')}.log"
        port = self._settings.port_from
        while not port_is_free(port):
            port += 1
        engine = start_engine(
            config,
            catalogue=catalogue,
            engine_python=target.python,
            model_path=target.model,
            port=port,
            cores=cores,
            log_path=log,
            owner=_owner(self._state),
        )
        self._wait(engine, role, renew)
        return Replica(
            role=role,
            config=config,
            config_hash=config.config_hash(),
            engine_id=engine.engine_id,
            nonce=engine.nonce,
            pid=engine.pid,
            port=port,
            log=log,
        )

    def _wait(self, engine: Engine, role: Role, renew: Callable[[], None] | None) -> None:
        deadline = time.monotonic() + self._settings.ready_timeout_s
        while True:
            try:
                wait_ready(engine, min(2.0, max(0.1, deadline - time.monotonic())))
                return
            except StartFailed as failure:
                if failure.outcome.kind != "start_timeout" or time.monotonic() > deadline:
                    stop(engine)
                    raise FleetError(
                        f"the {role} replica did not come up: {failure.outcome.text()}",
                        remedy=f"Its log: {engine.log_path}",
                    ) from None
            if renew is not None:
                renew()

    def retire(self, role: Role, *, renew: Callable[[], None] | None = None) -> None:
        """End the replica of a role with everything that it started; harmless when there is none."""
        set_targets(self._paths, "engines", [], {"role": role})
        try:
            found = Replica.model_validate_json(self._file(role).read_text())
        except (FileNotFoundError, ValueError):
            return
        left = processes.end(lambda: processes.of_engine(found.engine_id, found.pid), grace_s=10.0, meanwhile=renew)
        if left:
            raise FleetError(f"the {role} replica's pid {', '.join(str(p.pid) for p in left)} outlived SIGKILL")
        self._file(role).unlink(missing_ok=True)

    def drain_and_retire(
        self, role: Role, switch: EnvoySwitch, wait_s: float = DRAIN_S, *, renew: Callable[[], None] | None = None
    ) -> None:
        """Wait until no request is under way on the role, then end it; `renew` is called all the while."""
        deadline = time.monotonic() + wait_s
        while switch.counters()[role].active > 0 and time.monotonic() < deadline:
            if renew is not None:
                renew()
            time.sleep(0.2)
        if left := switch.counters()[role].active:
            LOG.warning("the %s replica still had %d requests after %d s; they are cut", role, left, wait_s)
        self.retire(role, renew=renew)
        if role == "canary":
            switch.clear_endpoint("canary")


def _owners(state_dir: Path) -> tuple[str, str]:
    return _owner(state_dir), f"ratchet-sandbox:{(state_dir / 'sandbox').absolute()}"


def engines_of(state_dir: Path) -> list[psutil.Process]:
    """Every process of a replica or a sandbox engine that belongs to this state folder."""
    return [process for owner in _owners(state_dir) for process in processes.of_owner(owner)]


def retire_everything(state_dir: Path) -> None:
    """End every replica and sandbox engine that belongs to this state folder, however it was left."""
    for owner in _owners(state_dir):
        sweep_orphans(owner)
    for role in ROLES:
        (state_dir / "production" / f"{role}.json").unlink(missing_ok=True)
