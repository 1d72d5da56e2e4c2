"""Bring the local stack up, look at it, take it down. Each can be repeated at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra.errors import BadInput
from infra.stack.atomic import file_lock
from infra.stack.files import edit_stack, read_parts, read_stack, stack_credentials
from infra.stack.parts import base_environment, binary_of
from infra.stack.paths import StackPaths
from infra.stack.ports import wanted_ports
from infra.stack.probes import probe
from infra.stack.processes import find, marked, running
from infra.stack.records import BUCKET, PARTS, PartProcess, PartStatus, S3Key, StackError, StackStatus
from infra.stack.supervisor import end_leftovers
from infra.store import ObjectStore

LOCK_WAIT_S = 120.0
SUPERVISOR_STARTS = 3
_ADDRESS_OF = {"s3": "s3", "prometheus": "prometheus", "envoy": "envoy", "prefect": "prefect"}


def stack_up(
    state_dir: Path,
    parts: Sequence[str] = ("s3", "prometheus", "envoy"),
    ports: Mapping[str, int] | None = None,
    prefect: bool = True,
    *,
    deadline_s: float = 90.0,
) -> StackStatus:
    """Start what is not running and wait until all of it answers.

    Safe to repeat, and safe beside another `stack_up` of the same folder: the second waits for the first.
    Heals after a kill of any part or of the supervisor. Weight, addresses, objects, series and keys are
    kept.

    Args:
        state_dir: the stack's folder, made where it is missing.
        parts: parts to run beside those that this stack runs already.
        ports: listener name to wanted port (see DEFAULT_PORTS); RATCHET_PORT_<NAME> otherwise, else the
            port of last time, else the default. A taken port is moved upwards. Used when a part is started.
        prefect: whether the Prefect server is a part too (12 s to start).
        deadline_s: how long to wait for all parts together.

    Raises:
        StackError: a part did not get ready; names it, what is wrong and its log.
        MissingBinary: a part's program is not installed.
        BadInput: an unknown part or port name.
        LockHeld: another `up` or `down` was still at work after two minutes.
    """
    wanted = (*parts, *(("prefect",) if prefect else ()))
    if unknown := set(wanted) - set(PARTS):
        raise BadInput(f"no part is called {sorted(unknown)[0]!r}", remedy=f"Parts: {', '.join(PARTS)}")
    asked = wanted_ports(ports)
    for part in wanted:
        binary_of(part)
    paths = StackPaths(state_dir)
    paths.prepare()
    with file_lock(paths.command_lock, wait_s=LOCK_WAIT_S):
        stack_credentials(paths)
        edit_stack(paths, add_parts=wanted, ports=asked)
        recorded = read_parts(paths)
        supervisor = find(recorded.supervisor) if recorded else None
        if supervisor is not None:
            supervisor.send_signal(signal.SIGHUP)
        else:
            _start_supervisor(paths)
        return _wait(paths, time.monotonic() + deadline_s)


def stack_down(state_dir: Path) -> None:
    """End every process of the stack and verify that none is left. No stack is no error; data stays.

    Raises:
        StackError: a process could not be ended; names its pid.
        LockHeld: an `up` was still at work after two minutes.
    """
    paths = StackPaths(state_dir)
    if not paths.state_dir.exists():
        _end_all(paths)
        return
    with file_lock(paths.command_lock, wait_s=LOCK_WAIT_S):
        recorded = read_parts(paths)
        supervisor = find(recorded.supervisor) if recorded else None
        if supervisor is not None:
            supervisor.terminate()
            deadline = time.monotonic() + 12.0
            while time.monotonic() < deadline and running(supervisor):
                time.sleep(0.05)
        _end_all(paths)
        paths.parts_file.unlink(missing_ok=True)


def stack_status(state_dir: Path) -> StackStatus:
    """What runs, where, since when and what is wrong, by asking each part. Changes nothing."""
    paths = StackPaths(state_dir)
    file, recorded = read_stack(paths), read_parts(paths)
    alive = recorded is not None and find(recorded.supervisor) is not None
    supervisor = PartStatus(
        name="supervisor",
        up=alive,
        pid=recorded.supervisor.pid if recorded and alive else None,
        since=recorded.supervisor.since if recorded and alive else None,
        wrong="" if alive else "not running",
    )
    records = recorded.parts if recorded else {}

    def look(name: str) -> PartStatus:
        return _status(name, records.get(name), paths, file.ports)

    with ThreadPoolExecutor(max_workers=len(PARTS)) as pool:
        found = tuple(pool.map(look, file.parts))
    return StackStatus(state_dir=paths.state_dir, supervisor=supervisor, parts=found)


def open_stack_store(state_dir: Path, identity: str = "admin") -> ObjectStore:
    """The embedded object store, as `admin` (reads and writes) or `agent` (reads only).

    Raises:
        StackError: this stack never chose a port for it.
        BadInput: another identity.
    """
    paths = StackPaths(state_dir)
    ports = read_stack(paths).ports
    if "s3" not in ports:
        raise StackError(f"no object store was ever started in {paths.state_dir}", remedy="Run `ratchet stack up`")
    keys = stack_credentials(paths)
    chosen: dict[str, S3Key] = {"admin": keys.admin, "agent": keys.agent}
    if identity not in chosen:
        raise BadInput(f"no identity is called {identity!r}", remedy="Name admin or agent")
    key = chosen[identity]
    return ObjectStore(f"http://127.0.0.1:{ports['s3']}", BUCKET, key.access_key, key.secret_key.get_secret_value())


def _status(name: str, record: PartProcess | None, paths: StackPaths, ports: Mapping[str, int]) -> PartStatus:
    in_force = record.ports if record is not None else dict(ports)
    port = in_force.get(_ADDRESS_OF[name])
    address = f"http://127.0.0.1:{port}" if port else ""
    if record is None or find(record) is None:
        tail = f"; before: {record.last_exit}" if record is not None and record.last_exit else ""
        return PartStatus(name=name, up=False, address=address, wrong=f"not running{tail}")
    wrong = probe(name, paths, in_force)
    return PartStatus(
        name=name,
        up=not wrong,
        address=address,
        pid=record.pid,
        since=record.since,
        restarts=record.restarts,
        wrong=wrong,
    )


def _start_supervisor(paths: StackPaths) -> None:
    end_leftovers(paths)
    paths.parts_file.unlink(missing_ok=True)
    environment = base_environment(paths)
    # The package may lie in a checkout that is not installed.
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "infra.stack.supervisor", "--state", str(paths.state_dir), "--detach"]
    with paths.log_file("supervisor").open("ab") as log:
        subprocess.run(
            command,
            cwd=paths.state_dir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
            timeout=60,
        )
    # It writes its record once the leftovers of an earlier one are gone.
    deadline = time.monotonic() + 15.0
    while not paths.parts_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _wait(paths: StackPaths, deadline: float) -> StackStatus:
    starts = 0
    while True:
        status = stack_status(paths.state_dir)
        if status.ok:
            return status
        if time.monotonic() >= deadline:
            break
        # One that was killed a moment ago may still have looked alive when `up` began.
        if not status.supervisor.up and starts < SUPERVISOR_STARTS:
            starts += 1
            _start_supervisor(paths)
        time.sleep(0.1)
    if not status.supervisor.up:
        raise StackError(
            f"the supervisor of {paths.state_dir} is not running; "
            f"log {paths.log_file('supervisor')}: {_tail(paths, 'supervisor')}",
            remedy="Run `ratchet stack down`, then `ratchet stack up`",
        )
    bad = next(part for part in status.parts if not part.up)
    raise StackError(
        f"{bad.name} did not get ready: {bad.wrong}; log {paths.log_file(bad.name)}: {_tail(paths, bad.name)}",
        remedy="Run `ratchet stack down`, then `ratchet stack up`",
    )


def _tail(paths: StackPaths, part: str) -> str:
    try:
        lines = paths.log_file(part).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "no log"
    return " | ".join(lines[-3:]) or "empty"


def _end_all(paths: StackPaths) -> None:
    end_leftovers(paths)
    if left := marked(paths.marker):
        names = ", ".join(f"{process.pid}" for process in left)
        raise StackError(
            f"processes of the stack in {paths.state_dir} could not be ended: {names}",
            remedy=f"End them as their owner (you are uid {os.getuid()})",
        )
