"""A profile of one engine under load, by py-spy from outside. What it slows down is never measured."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from infra.bench.measure import Served, cold_cache
from infra.bench.stacks import CpuProfile, cpu_profile
from infra.errors import RatchetError
from infra.replay.process import ReplayTimedOut, run_replay_process
from infra.replay.records import ReplayOptions
from infra.sampling.sample import load_sample, make_sample, save_sample

ATTACH_S = 10.0
RATE_HZ = 50
STACKS_FILE = "stacks.txt"
NOT_PERMITTED = (
    "py-spy may not attach to the engine: no ptrace right (it needs root, or the engine's user with "
    "kernel.yama.ptrace_scope 0)"
)
# Pins itself, then becomes py-spy, so that none of its threads ever runs on the engine's core.
_PIN = (
    "import os, sys; os.sched_setaffinity(0, {int(c) for c in sys.argv[1].split(',')}); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def py_spy() -> Path | None:
    """The installed py-spy: this environment's, else the path's."""
    own = Path(sys.executable).parent / "py-spy"
    found = str(own) if own.exists() else shutil.which("py-spy")
    return None if found is None else Path(found)


def refusal_cause(exit_code: int, said: str) -> str:
    """Why py-spy gave no stacks, from its exit code and what it wrote to stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(word in said.lower() for word in ("permission denied", "operation not permitted")):
        return NOT_PERMITTED
    return f"py-spy ended with {exit_code}: {lines[0][:300] if lines else 'it said nothing'}"


def attach_refusal(executable: Path, pid: int) -> str | None:
    """Why py-spy cannot look into the process; None when it can.

    Asked with `dump`, since `record --subprocesses` says of a process that it may not read that it is no Python.
    """
    try:
        done = subprocess.run(
            [str(executable), "dump", "--pid", str(pid)], capture_output=True, timeout=ATTACH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"py-spy did not look into the engine within {ATTACH_S:g} s"
    return None if done.returncode == 0 else refusal_cause(done.returncode, done.stderr.decode(errors="replace"))


class Spy:
    """A py-spy that records a process and its descendants until `stop`."""

    def __init__(self, executable: Path, pid: int, out: Path, *, seconds: float, cores: Sequence[int]) -> None:
        record = [
            str(executable), "record", "--pid", str(pid), "--subprocesses", "--format", "raw", "--nolineno",
            "--rate", str(RATE_HZ), "--duration", str(max(1, round(seconds))), "--output", str(out),
        ]  # fmt: skip
        mine = ",".join(str(core) for core in cores or sorted(os.sched_getaffinity(0)))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PIN, mine, *record],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def stop(self) -> str | None:
        """End it; None when it wrote its stacks, else why it did not."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            _, said = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            return "py-spy did not end within 10 s of being asked to"
        code = self._process.returncode
        return None if code == 0 else refusal_cause(code, said.decode(errors="replace"))

    def kill(self) -> None:
        """Make sure that it is gone; the kernel then lets the engine run on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def profile_engine(
    served: Served,
    sample_path: Path,
    folder: Path,
    *,
    concurrency: int,
    client_cores: Sequence[int],
    seconds: float = 9.0,
    executable: Path | None = None,
) -> CpuProfile:
    """Replay the sample's first requests in closed loop, `seconds` at most, and see what the engine works on.

    What was in flight at the end is cut off; the engine drops it. py-spy's stacks stay in `folder`/STACKS_FILE.
    Whatever stands in the way becomes the cause of an unknown reading.
    """
    executable = executable or py_spy()
    if executable is None or not executable.exists():
        return CpuProfile.unknown("py-spy is not installed")
    out = folder / STACKS_FILE
    source = f"py-spy at {RATE_HZ} Hz, unmeasured closed loop of {concurrency} on the baseline's engine"
    try:
        sample = load_sample(sample_path)
        save_sample(make_sample(sample.entries[: max(6, 4 * concurrency)], sample.strata), folder / "profiled.parquet")
        if (cause := attach_refusal(executable, served.pid)) is not None:
            return CpuProfile.unknown(cause, source)
        cold_cache(served)
        started_s = time.monotonic()
        spy = Spy(executable, served.pid, out, seconds=seconds + 5, cores=client_cores)
        try:
            with suppress(ReplayTimedOut):
                run_replay_process(
                    folder / "profiled.parquet",
                    f"{served.root_url}/v1",
                    served.model,
                    folder,
                    cores=client_cores,
                    options=ReplayOptions(mode="closed", concurrency=concurrency),
                    process_timeout_s=seconds,
                )
            if (cause := spy.stop()) is not None:
                return CpuProfile.unknown(cause, source)
        finally:
            spy.kill()
        took_s = time.monotonic() - started_s
        return cpu_profile(out.read_text(errors="replace"), f"{source}, {took_s:.0f} s")
    except (RatchetError, OSError) as fault:
        return CpuProfile.unknown(f"no profile could be taken: {fault}", source)
