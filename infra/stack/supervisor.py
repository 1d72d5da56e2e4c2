"""The one background process of a stack: starts its parts, starts again what died, ends all when told to.

Run as `python -m infra.stack.supervisor --state DIR`. SIGTERM ends the stack, SIGHUP starts waiting parts at
once. Everything happens in the main thread: Envoy gets a SIGTERM when the thread that started it ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import psutil

from infra.errors import RatchetError
from infra.stack.atomic import LockHeld, file_lock, replace_file
from infra.stack.files import edit_stack, read_parts, read_stack
from infra.stack.parts import base_environment, prepare
from infra.stack.paths import StackPaths
from infra.stack.ports import DEFAULT_PORTS, PORTS_OF_PART, free_port, listener_ports
from infra.stack.processes import describe, end_all, end_group, find, marked
from infra.stack.records import PARTS, PartProcess, PartsFile, StackFile

PAUSE_S = 0.2
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_S = 30.0  # a part that ran this long has its backoff forgotten
LOG_BYTES = 20_000_000
EXIT_LOCKED = 3


@dataclass
class _Part:
    """What the supervisor remembers of one part."""

    process: subprocess.Popen[bytes] | None = None
    record: PartProcess | None = None
    started_s: float = 0.0
    next_start_s: float = 0.0
    failures: int = 0
    starts: int = 0
    last_exit: str = ""


class Supervisor:
    """Keeps the wanted parts of one stack running."""

    def __init__(self, paths: StackPaths) -> None:
        self._paths = paths
        self._parts = {name: _Part() for name in PARTS}
        self._stopping = False
        self._hurry = False
        self._written: PartsFile | None = None
        self._wanted = StackFile()
        self._self = describe(os.getpid(), {})

    def run(self) -> None:
        """Work until SIGTERM, then end every part."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hurry)
        end_leftovers(self._paths)
        self._write()
        while not self._stopping:
            self._round()
            time.sleep(PAUSE_S)
        self._end()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _on_hurry(self, _number: int, _frame: FrameType | None) -> None:
        self._hurry = True

    def _round(self) -> None:
        try:
            self._wanted = read_stack(self._paths)
        except RatchetError as error:
            _say(str(error))  # the last good one stays in force
        if self._hurry:
            self._hurry = False
            for part in self._parts.values():
                part.next_start_s, part.failures = 0.0, 0
        for name in self._wanted.parts:
            if self._stopping:
                return
            try:
                self._tend(name)
            except (RatchetError, OSError) as error:
                self._failed(self._parts[name], f"could not be started: {error}")
                _say(f"{name}: {error}")
        self._write()

    def _tend(self, name: str) -> None:
        part, now = self._parts[name], time.monotonic()
        if part.process is not None:
            code = part.process.poll()
            if code is None:
                if now - part.started_s > STEADY_S:
                    part.failures = 0
                return
            end_group(part.process.pid, signal.SIGKILL)  # its children, if it left any
            part.process = part.record = None
            self._failed(part, f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}")
            _say(f"{name}: {part.last_exit}")
        if now >= part.next_start_s:
            self._start(name, part)

    @staticmethod
    def _failed(part: _Part, why: str) -> None:
        part.last_exit = why
        part.next_start_s = time.monotonic() + BACKOFF_S[min(part.failures, len(BACKOFF_S) - 1)]
        part.failures += 1

    def _start(self, name: str, part: _Part) -> None:
        ports = self._ports(name)
        launch = prepare(name, self._paths, ports)
        log = self._paths.log_file(name)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        environment = {**base_environment(self._paths), **launch.environment}
        with log.open("ab") as output:
            process = subprocess.Popen(
                launch.argv,
                cwd=launch.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        part.process, part.started_s = process, time.monotonic()
        part.record = describe(process.pid, ports, restarts=part.starts, last_exit=part.last_exit)
        part.starts += 1
        _say(f"{name}: started as {process.pid} on {ports}")

    def _ports(self, name: str) -> dict[str, int]:
        """Free ports for the part's listeners; those that moved are written to stack.json."""
        known = self._wanted.ports
        promised = {
            port
            for other, at in known.items()
            if other not in PORTS_OF_PART[name]
            for port in listener_ports(other, at)
        }
        chosen: dict[str, int] = {}
        for listener in PORTS_OF_PART[name]:
            wanted = known.get(listener, DEFAULT_PORTS[listener])
            port = free_port(listener, wanted, promised)
            if port != wanted:
                _say(f"{name}: port {wanted} of {listener} is taken, moved to {port}")
            chosen[listener] = port
            promised.update(listener_ports(listener, port))
        if any(known.get(listener) != port for listener, port in chosen.items()):
            self._wanted = edit_stack(self._paths, ports=chosen)
        return chosen

    def _write(self) -> None:
        records = {name: part.record for name, part in self._parts.items() if part.record is not None}
        file = PartsFile(supervisor=self._self, parts=records)
        if file != self._written:
            replace_file(self._paths.parts_file, file.model_dump_json(indent=1))
            self._written = file

    def _end(self) -> None:
        groups = [part.process for part in self._parts.values() if part.process is not None]
        for process in groups:
            end_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 6.0
        while time.monotonic() < deadline and any(process.poll() is None for process in groups):
            time.sleep(0.05)
        for process in groups:
            end_group(process.pid, signal.SIGKILL)
            process.wait()
        _say("all parts ended")


def end_leftovers(paths: StackPaths) -> list[psutil.Process]:
    """End what an earlier supervisor of this stack left running; returns what could not be ended."""
    recorded = read_parts(paths)
    known = [*recorded.parts.values(), recorded.supervisor] if recorded else []
    remembered = [process for one in known if one.pid != os.getpid() and (process := find(one)) is not None]
    everything = {process.pid: process for process in (*remembered, *marked(paths.marker))}
    return end_all(everything.values())


def _say(message: str) -> None:
    print(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {message}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry of the process. Exit code 3: another supervisor holds this stack."""
    parser = argparse.ArgumentParser(description="supervisor of one local stack")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--detach", action="store_true", help="go on in the background, as nobody's child")
    options = parser.parse_args(arguments)
    # Without a parent that must collect it, a killed supervisor leaves no zombie behind.
    if options.detach and os.fork() > 0:
        os._exit(0)
    paths = StackPaths(options.state)
    paths.prepare()
    try:
        with file_lock(paths.supervisor_lock, wait_s=2.0):
            Supervisor(paths).run()
    except LockHeld as error:
        _say(str(error))
        return EXIT_LOCKED
    return 0


if __name__ == "__main__":
    sys.exit(main())
