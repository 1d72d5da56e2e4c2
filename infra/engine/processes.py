"""Finding and ending the processes of an engine, whatever group or parent they have by now."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

ID_VARIABLE = "RATCHET_ENGINE_ID"
OWNER_VARIABLE = "RATCHET_ENGINE_OWNER"
POLL_S = 0.05


def matching(wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Living processes, zombies and ourselves excepted, for which `wanted` holds."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.status() != psutil.STATUS_ZOMBIE and wanted(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    return found


def in_session(process: psutil.Process, session: int) -> bool:
    """Whether the process belongs to the session (or group) whose leader was `session`."""
    with suppress(ProcessLookupError, PermissionError):
        return session in (os.getsid(process.pid), os.getpgid(process.pid))
    return False


def has_mark(process: psutil.Process, variable: str, value: str) -> bool:
    """Whether the process was started with this variable in its environment."""
    try:
        return bool(process.environ().get(variable) == value)
    except (psutil.Error, OSError):
        return False


def of_engine(engine_id: str, leader: int, fork_mark: str = "") -> list[psutil.Process]:
    """Every process of one engine: those with its mark, and for a forked one those of its session.

    A forked engine shows the mark of the fork server that it came from (`fork_mark`), whatever was put into
    its environment later. Session alone is never enough: a pid may have been given to somebody else since.
    """
    return matching(
        lambda p: (
            has_mark(p, ID_VARIABLE, engine_id)
            or bool(fork_mark and in_session(p, leader) and has_mark(p, ID_VARIABLE, fork_mark))
        )
    )


def of_owner(owner: str) -> list[psutil.Process]:
    """Every process that was started for `owner`, engines and their fork servers alike."""
    return matching(lambda p: has_mark(p, OWNER_VARIABLE, owner))


def end(
    find: Callable[[], list[psutil.Process]],
    *,
    grace_s: float,
    kill_wait_s: float = 10.0,
    terminate_first: Iterable[int] = (),
    meanwhile: Callable[[], None] | None = None,
) -> list[psutil.Process]:
    """TERM, wait, KILL, wait; returns what is still there.

    Args:
        find: gives the present processes; asked again each time, so that new children are seen.
        grace_s: seconds between TERM and KILL.
        terminate_first: pids that get the TERM (an engine shuts its own children down); all when empty.
        meanwhile: called at every look while it waits.
    """

    def pause() -> None:
        time.sleep(POLL_S)
        if meanwhile is not None:
            meanwhile()

    present = find()
    first = set(terminate_first)
    for process in present:
        if not first or process.pid in first:
            _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while present and time.monotonic() < deadline:
        pause()
        present = [p for p in present if _lives(p)] or find()
    deadline = time.monotonic() + kill_wait_s
    while (present := find()) and time.monotonic() < deadline:
        for process in present:
            _signal(process, signal.SIGKILL)
        pause()
    return present


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)
