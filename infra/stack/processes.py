"""Finding and ending the processes of a stack, including those that nobody remembers starting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from infra.stack.records import PartProcess

MARKER = "RATCHET_STACK"


def running(process: psutil.Process) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def describe(
    pid: int, ports: Mapping[str, int] | None = None, *, restarts: int = 0, last_exit: str = ""
) -> PartProcess:
    """The record of a process that was just started (Linux).

    Raises:
        psutil.NoSuchProcess: there is none with this pid.
    """
    return PartProcess(
        pid=pid,
        create_time=psutil.Process(pid).create_time(),
        start_ticks=_start_ticks(pid),
        boot_id=_boot_id(),
        ports=dict(ports or {}),
        since=datetime.now(UTC),
        restarts=restarts,
        last_exit=last_exit,
    )


def find(recorded: PartProcess) -> psutil.Process | None:
    """The recorded process if it still lives; None when it is gone or its pid belongs to another one now.

    Told apart by ticks since boot: times of day shift when the clock is set or a virtual machine resumes, and
    a living supervisor would be taken for a dead one.
    """
    if recorded.boot_id != _boot_id():
        return None
    try:
        process = psutil.Process(recorded.pid)
        same = _start_ticks(recorded.pid) == recorded.start_ticks
    except psutil.NoSuchProcess:
        return None
    return process if same and running(process) else None


def _start_ticks(pid: int) -> int:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The command name may hold spaces and brackets; the fields after it do not. Start time is field 22.
    return int(line.rpartition(")")[2].split()[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marked(marker: str) -> list[psutil.Process]:
    """Every living process whose environment says that it belongs to the stack `marker`.

    The calling process and its ancestors are left out, so that a command started from inside never ends
    itself.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if process.environ().get(MARKER) == marker and running(process):
                found.append(process)
    return found


def end_group(pid: int, sign: signal.Signals) -> None:
    """Send `sign` to the process group led by `pid`; a group that is gone is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sign)


def end_all(processes: Iterable[psutil.Process], *, grace_s: float = 5.0) -> list[psutil.Process]:
    """End processes by group: SIGTERM, wait up to `grace_s` seconds, SIGKILL. Returns those that live on.

    A process that sits in somebody else's group (its leader is not among `processes`) is ended alone.
    """
    targets = list(processes)
    pids = {process.pid for process in targets}
    own_group = os.getpgrp()
    for sign, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 3.0)):
        left = [process for process in targets if running(process)]
        if not left:
            return []
        for process in left:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                group = os.getpgid(process.pid)
                leader_is_foreign = group not in pids and psutil.pid_exists(group)
                if group == own_group or leader_is_foreign:
                    process.send_signal(sign)
                else:
                    end_group(group, sign)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and any(running(process) for process in left):
            time.sleep(0.03)
    return [process for process in targets if running(process)]
