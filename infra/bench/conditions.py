"""What else the machine did while something was measured: steal, foreign load, clocks and throttling (spec V3)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field


class RunConditions(BaseModel):
    """Read over the time of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steal_pct: float | None = Field(
        description="CPU time taken by the hypervisor from the core that it took most of, %"
    )
    foreign_cpu_pct: float | None = Field(description="CPU of processes that are not ours, % of the machine")
    duration_s: float
    cpu_mhz: float | None = Field(
        default=None, description="clock of the slowest core at the start or the end of the run; None: not told"
    )
    throttled: int | None = Field(
        default=None, description="times that the CPU slowed itself for its heat; None: no core counts them"
    )


THROTTLE_COUNTS = "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"


def throttle_count(sysfs: Path = Path("/sys")) -> int | None:
    """How often cores and package slowed themselves for their heat since boot; None where nothing counts it."""
    counts = []
    for file in sysfs.glob(THROTTLE_COUNTS):
        with suppress(OSError, ValueError):
            counts.append(int(file.read_text()))
    return sum(counts) if counts else None


def _slowest_mhz() -> float | None:
    try:
        clocks = [core.current for core in psutil.cpu_freq(percpu=True)]
    except (OSError, NotImplementedError, AttributeError):
        return None
    return min(clocks, default=None)


def _process_seconds() -> dict[int, tuple[float, float]]:
    """pid → (create time, CPU seconds)."""
    seconds: dict[int, tuple[float, float]] = {}
    for process in psutil.process_iter(["pid", "create_time", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            seconds[process.info["pid"]] = (process.info["create_time"], times.user + times.system)
    return seconds


def _steal_s() -> list[float]:
    """Seconds taken from each core since boot. The mean over cores would hide a theft from the engine's one."""
    return [float(getattr(times, "steal", 0.0)) for times in psutil.cpu_times(percpu=True)]


def _own(pid: int, markers: tuple[str, ...], trees: set[int]) -> bool:
    if pid in trees:
        return True
    try:
        environment = psutil.Process(pid).environ()
    except psutil.Error:
        return False
    return any(name in environment for name in markers)


class ConditionsWatch:
    """Start it before a run, `finish` it after.

    Args:
        own_pids: processes that belong to the measurement (with their descendants).
        markers: environment variables that mark the stack's own processes.
    """

    def __init__(self, own_pids: Iterable[int], markers: tuple[str, ...] = ("RATCHET_STACK",)) -> None:
        self._own_pids = {os.getpid(), *own_pids}
        self._markers = markers
        self._started_s = time.monotonic()
        self._steal = _steal_s()
        self._throttled = throttle_count()
        self._mhz = _slowest_mhz()
        self._before = _process_seconds()

    def finish(self) -> RunConditions:
        """The readings since the start. CPU of a process that ended meanwhile is not seen."""
        elapsed = max(time.monotonic() - self._started_s, 1e-6)
        cores = psutil.cpu_count() or 1
        steal_s = max(after - before for after, before in zip(_steal_s(), self._steal, strict=True))
        trees: set[int] = set()
        for pid in self._own_pids:
            trees.add(pid)
            try:
                trees.update(child.pid for child in psutil.Process(pid).children(recursive=True))
            except psutil.Error:
                continue
        foreign = 0.0
        for pid, (created, seconds) in _process_seconds().items():
            was = self._before.get(pid)
            used = seconds - was[1] if was and was[0] == created else seconds
            if used > 0.02 and not _own(pid, self._markers, trees):
                foreign += used
        scale = 100.0 / (elapsed * cores)
        throttled = throttle_count()
        clocks = [mhz for mhz in (self._mhz, _slowest_mhz()) if mhz is not None]
        return RunConditions(
            steal_pct=steal_s * 100.0 / elapsed,
            foreign_cpu_pct=foreign * scale,
            duration_s=elapsed,
            cpu_mhz=min(clocks, default=None),
            throttled=None if throttled is None or self._throttled is None else throttled - self._throttled,
        )
