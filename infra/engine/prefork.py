"""The owner's side of the fork server (scripts/prefork.py): starts take seconds instead of half a minute."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from infra.engine.config import ServingConfig
from infra.engine.errors import EngineFailed
from infra.engine.processes import ID_VARIABLE, OWNER_VARIABLE

SCRIPT = Path(__file__).parent / "scripts" / "prefork.py"
# The engine core runs inside a forked process only with this; with workers of its own it starts cold.
NEEDED_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class PreforkServer:
    """A process that has imported the engine and forks it on request.

    Libraries read part of the environment while they load, so a server starts only configurations whose
    environment is exactly its own (`supports`); others start cold. Use it as a context manager, or `close` it.
    It also ends by itself when its owner dies.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], path: Path, env: Mapping[str, str], log_path: Path, mark: str
    ) -> None:
        self._process = process
        self._path = path
        self._env = dict(env)
        self.log_path = log_path
        self.mark = mark

    @classmethod
    def start(
        cls,
        *,
        engine_python: Path,
        config: ServingConfig,
        base_env: Mapping[str, str],
        log_path: Path,
        owner: str = "",
        cores: Sequence[int] = (),
    ) -> PreforkServer:
        """Start the import in the background; `wait_ready` when it is needed.

        Args:
            engine_python: the engine's interpreter.
            config: its environment decides what the server can start.
            base_env: what every engine inherits (launch.base_env()).
            log_path: gets the server's own output.
            owner: mark for `launch.sweep_orphans`.
            cores: CPU cores for the import; all when empty.
        """
        folder = Path(tempfile.mkdtemp(prefix="ratchet-prefork-"))
        path = folder / "socket"
        mark = f"prefork-{secrets.token_hex(8)}"
        env = {**base_env, **config.env, OWNER_VARIABLE: owner, ID_VARIABLE: mark}
        if preload := openmp_library(engine_python):
            env["LD_PRELOAD"] = str(preload)  # as the engine itself does for the core that it spawns
        log_path.parent.mkdir(parents=True, exist_ok=True)
        before = os.sched_getaffinity(0)
        try:
            if cores:
                os.sched_setaffinity(0, cores)
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    [str(engine_python), str(SCRIPT), str(path)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                    cwd=folder,
                )
        finally:
            os.sched_setaffinity(0, before)
        return cls(process, path, config.env, log_path, mark)

    def supports(self, config: ServingConfig) -> bool:
        """Whether an engine of this configuration may be forked here."""
        return (
            self._process.poll() is None
            and dict(config.env) == self._env
            and all(config.env.get(name) == value for name, value in NEEDED_ENV.items())
            and not config.args.get("numa_bind")
        )

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        """Wait until the import is done.

        Raises:
            EngineFailed: the server ended or did not come up in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EngineFailed(
                    f"the engine's fork server ended with exit code {self._process.returncode}",
                    remedy=f"See {self.log_path}",
                )
            if self._path.exists():
                with suppress(OSError):
                    self._ask({"op": "ping"})
                    return
            time.sleep(0.05)
        raise EngineFailed(
            f"the engine's fork server was not ready after {timeout_s:g} s", remedy=f"See {self.log_path}"
        )

    def fork(self, *, argv: Sequence[str], env: Mapping[str, str], cores: Sequence[int], log_path: Path) -> int:
        """Start an engine; returns its pid, which is also its session and process group."""
        reply = self._ask(
            {"op": "start", "argv": list(argv), "env": dict(env), "cores": list(cores), "log": str(log_path)}
        )
        return int(reply["pid"])

    def poll(self, pid: int) -> int | None:
        """The exit code of a forked engine; None while it runs.

        Raises:
            OSError: the server is gone, so nobody knows the code.
        """
        reply = self._ask({"op": "poll", "pid": pid})
        code = reply.get("exit_code")
        return None if reply["running"] or code is None else int(code)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply: dict[str, Any] = json.loads(connection.makefile("r").readline())
        if "error" in reply:
            raise EngineFailed(f"the engine's fork server refused {request['op']}: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the server. Engines that it started go on: stop each with `launch.stop`."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)
        for leftover in (self._path, self._path.parent):
            with suppress(OSError):
                leftover.unlink() if leftover == self._path else leftover.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def openmp_library(engine_python: Path) -> Path | None:
    """The OpenMP library that comes with the engine's torch; None where it cannot be found."""
    venv = engine_python.parent.parent
    return next(iter(sorted(venv.glob("lib/python3*/site-packages/torch/lib/libgomp*.so*"))), None)
