"""A process that has imported the replay and forks it on request, so that no run waits for its imports.

The imports take one to two seconds, as long as the warm-up of a short run. The forked child is as fresh as a started
one: nothing has been replayed in the process that it comes from.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_ROOT = Path(__file__).parents[2]
_END_S = 5.0


def serve(jobs: BinaryIO, answers: BinaryIO, run: Callable[[Sequence[str]], int]) -> None:
    """The server's side: one job a line, `{"argv": [...], "stderr": path}`; its exit code a line, until `jobs` ends."""
    for line in jobs:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                target = os.open(job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                null = os.open(os.devnull, os.O_RDWR)
                for theirs, ours in ((null, 0), (null, 1), (target, 2)):
                    os.dup2(theirs, ours)
                code = run(job["argv"])
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
        answers.flush()


class ForkServer:
    """The owner's side. One replay at a time; a server that was ended is started again by the next one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """(exit code, what it wrote to stderr) of one replay; a negative code is a signal.

        Raises:
            TimeoutError: it took longer than `timeout_s`, and is gone.
        """
        with self._lock, tempfile.TemporaryDirectory(prefix="ratchet-replay-") as folder:
            stderr = Path(folder) / "stderr"
            try:
                server = self._started()
                assert server.stdin is not None
                server.stdin.write(json.dumps({"argv": list(argv), "stderr": str(stderr)}).encode() + b"\n")
                server.stdin.flush()
                answer = self._answer(server, timeout_s)
            except BaseException:
                self._end()
                raise
            if not answer:  # the server itself died
                code = server.wait()
                self._end()
                return code or 1, "its fork server ended"
            text = stderr.read_text(errors="replace") if stderr.exists() else ""
            return int(json.loads(answer)["code"]), text.strip()

    def close(self) -> None:
        """End the server and what it runs; harmless when there is none."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.replay", "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        return self._process

    def _answer(self, server: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        assert server.stdout is not None
        with ThreadPoolExecutor(1) as pool:
            line = pool.submit(server.stdout.readline)
            try:
                return line.result(timeout_s)
            except BaseException:
                self._end()  # which ends the read too
                raise

    def _end(self) -> None:
        server, self._process = self._process, None
        if server is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(_END_S)
        for pipe in (server.stdin, server.stdout):
            if pipe is not None:
                pipe.close()


SERVERS: defaultdict[str, ForkServer] = defaultdict(ForkServer)
"""One for each lane: replays of one lane wait for each other, those of two lanes run side by side."""


@atexit.register
def close_all() -> None:
    """End every server."""
    for server in SERVERS.values():
        server.close()
