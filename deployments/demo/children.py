"""Runs one side's work as a process of its own, with that side's rights alone, and shows what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from deployments.environment import Side, child_environment
from infra.engine import processes
from infra.errors import RatchetError

_LOG_LINE = re.compile(r"\|\s+(INFO|WARNING|ERROR|CRITICAL)\s+\|\s+(?:Task|Flow) run (?:'[^']*'|\"[^\"]*\") - (.*)$")
_NOISE = (
    "Finished in state",
    "Beginning flow run",
    "Beginning subflow run",
    "View at",
    "Created task run",
    "Created subflow run",
)


def worth_showing(line: str) -> str | None:
    """The message of a log line that a person wants to see, or None."""
    found = _LOG_LINE.search(line)
    if found is None:
        return None
    level, message = found.groups()
    if any(noise in message for noise in _NOISE):
        return None
    return message if level == "INFO" else f"{level}: {message}"


RUN_MARK = "RATCHET_RUN"
"""Set in every child of a demo, so that the next one finds what a killed one left."""


def marked_environment(state: Path, side: Side) -> dict[str, str]:
    """One side's settings, and the mark by which `end_leftovers` finds the process."""
    return {**child_environment(state, side), RUN_MARK: str(state)}


def end_leftovers(state: Path) -> list[int]:
    """End what an earlier demo of this state folder left running; returns the pids.

    Raises:
        RatchetError: one of them outlived SIGKILL.
    """

    def mine() -> list[psutil.Process]:
        return processes.matching(lambda p: p.pid != os.getpid() and processes.has_mark(p, RUN_MARK, str(state)))

    found = [p.pid for p in mine()]
    if found and (left := processes.end(mine, grace_s=5.0)):
        raise RatchetError(f"processes of an earlier demo outlived SIGKILL: {', '.join(str(p.pid) for p in left)}")
    return found


def run_side(
    state: Path,
    side: Side,
    arguments: Sequence[str],
    log: Path,
    say: Callable[[str], None],
    *,
    timeout_s: float,
    accept: Sequence[int] = (0,),
) -> int:
    """`ratchet …` in a child with one side's settings; its whole output goes to `log`.

    Raises:
        RatchetError: an exit code that is not accepted; carries the child's last line.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    last = ""
    with log.open("a") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "deployments.cli", *arguments],
            env=marked_environment(state, side),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = subprocess.Popen(  # ends a child that hangs even when it writes nothing
            [
                sys.executable,
                "-c",
                "import os,signal,sys,time; time.sleep(float(sys.argv[1])); "
                "os.killpg(int(sys.argv[2]), signal.SIGTERM)",
                str(timeout_s),
                str(child.pid),
            ],
            env=marked_environment(state, side),
            start_new_session=True,
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                out.write(line)
                out.flush()
                if line.strip():
                    last = line.strip()
                message = worth_showing(line)
                if message:
                    say(message)
            code = child.wait()
        finally:
            timer.kill()
            timer.wait()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
    if code not in accept:
        raise RatchetError(
            f"`ratchet {' '.join(arguments[:2])}` ended with {code}: {last[-400:]}",
            remedy=f"Everything that it said is in {log}",
        )
    return code
