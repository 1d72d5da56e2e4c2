"""Finding what a drill started, and stacks of its own that leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from infra.engine.processes import ID_VARIABLE
from infra.stack.control import stack_down, stack_up
from infra.traffic.fleet import retire_everything

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".ratchet" / "verify"


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def of_state(state: Path) -> list[psutil.Process]:
    """Living processes whose environment names this state folder, ourselves excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(
                str(state) == v or f"{state}/" in v or v.endswith(f":{state}") for v in process.environ().values()
            )
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def is_engine(process: psutil.Process) -> bool:
    """Whether the process belongs to an engine."""
    try:
        return ID_VARIABLE in process.environ()
    except (psutil.Error, OSError):
        return False


def is_stack(process: psutil.Process) -> bool:
    """Whether the process is a part of an embedded stack."""
    try:
        return "RATCHET_STACK" in process.environ() and ID_VARIABLE not in process.environ()
    except (psutil.Error, OSError):
        return False


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not, nor does another process under its pid."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_for(what: str, holds: Callable[[], bool], limit_s: float, every_s: float = 0.2) -> float:
    """Seconds until it held.

    Raises:
        TimeoutError: it did not within `limit_s`; names it.
    """
    started_s = time.monotonic()
    while not holds():
        if time.monotonic() - started_s > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - started_s


@contextlib.contextmanager
def own_stack(name: str, *, prefect: bool) -> Iterator[Path]:
    """A stack in a state folder of its own; it and everything that its folder names ends with the block."""
    state = STATE / name
    state.mkdir(parents=True, exist_ok=True)
    retire_everything(state)
    stack_up(state, prefect=prefect)
    try:
        yield state
    finally:
        retire_everything(state)
        stack_down(state)


class Checks:
    """What held and what did not; a drill goes on to its end, so that one run tells all."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.held = 0

    def __call__(self, what: str, holds: bool, seen: object = "") -> None:
        """Note one; `seen` is what was there instead."""
        if holds:
            self.held += 1
        else:
            self.failed.append(f"{what} ({str(seen)[:300]})" if seen != "" else what)

    def result(self, what: str) -> dict[str, object]:
        """As `make verify` stores it."""
        tail = f"; FAILED: {'; '.join(self.failed)}" if self.failed else ""
        return {"passed": not self.failed and self.held > 0, "what": f"{what}; {self.held} checks held{tail}"}
