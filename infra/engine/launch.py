"""Starting an engine, proving that it is ours, and making sure that nothing of it is left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from infra.engine import processes
from infra.engine.catalogue import Catalogue
from infra.engine.config import ServingConfig
from infra.engine.errors import EngineFailed, StillRunning
from infra.engine.outcomes import Outcome, Phase, classify_exit
from infra.engine.prefork import PreforkServer
from infra.engine.render import render_argv, render_env
from infra.stack.ports import port_is_free

MODULE = "vllm.entrypoints.openai.api_server"
LOG_TAIL_BYTES = 64 * 1024
# Nothing else of the caller's environment reaches an engine: no keys, no addresses.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "VLLM_CACHE_ROOT")
FIXED_ENV = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache and /server_info
    "SPT_NOENV": "1",  # process titles leave the environment readable, by which leftovers are found
    "PYTHONUNBUFFERED": "1",
}


class StartFailed(EngineFailed):
    """The engine did not come up; `outcome` says how it ended."""

    def __init__(self, outcome: Outcome, log_path: Path) -> None:
        super().__init__(f"the engine did not start: {outcome.text()}", remedy=f"Its log: {log_path}")
        self.outcome = outcome


@dataclass(frozen=True)
class Engine:
    """One started engine."""

    engine_id: str
    pid: int
    port: int
    nonce: str
    model_name: str
    log_path: Path
    config_hash: str
    prefork: PreforkServer | None = field(default=None, repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def base_url(self) -> str:
        """Ends in /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def root_url(self) -> str:
        """Where /metrics, /health and /reset_prefix_cache are."""
        return f"http://127.0.0.1:{self.port}"

    def exit_code(self) -> int | None:
        """The exit code; None while it runs or when nobody saw it end."""
        if self.process is not None:
            return self.process.poll()
        if self.prefork is not None:
            with suppress(OSError, EngineFailed):
                return self.prefork.poll(self.pid)
        return None

    def runs(self) -> bool:
        """Whether its first process lives."""
        if self.exit_code() is not None:
            return False
        try:
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    def members(self) -> list[psutil.Process]:
        """Every living process of it, whatever parent, group or session it has by now."""
        return processes.of_engine(self.engine_id, self.pid, self.prefork.mark if self.prefork else "")

    def log_tail(self) -> str:
        """The last 64 KiB of its log."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def log_text(self) -> str:
        """All of its log; empty when there is none."""
        try:
            return self.log_path.read_text(errors="replace")
        except OSError:
            return ""

    def outcome(self, phase: Phase) -> Outcome:
        """How it ended, from exit code and log."""
        return classify_exit(self.exit_code(), self.log_tail(), phase)


def base_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every engine inherits: a few names of the caller's environment and the fixed ones."""
    source = os.environ if environ is None else environ
    return {name: source[name] for name in INHERITED if name in source} | FIXED_ENV


def start_engine(
    config: ServingConfig,
    *,
    catalogue: Catalogue,
    engine_python: Path,
    model_path: Path,
    port: int,
    cores: tuple[int, ...],
    log_path: Path,
    extra_env: Mapping[str, str] | None = None,
    owner: str = "",
    prefork: PreforkServer | None = None,
    command: tuple[str, ...] | None = None,
) -> Engine:
    """Start an engine in a session of its own; returns before it is ready (`wait_ready`).

    Args:
        config: what to serve with; check it with legal.check first.
        catalogue: of the installed engine.
        engine_python: its interpreter.
        model_path: folder of the model's files.
        port: TCP port on 127.0.0.1; must be free.
        cores: CPU cores it may run on; all of the caller's when empty.
        log_path: gets its output, appended.
        extra_env: more environment; overrides what is inherited, not what the configuration says.
        owner: mark by which `sweep_orphans` finds it.
        prefork: forks it when that server supports the configuration; otherwise it starts cold.
        command: takes the place of `engine_python -m …` (a stub in tests).

    Raises:
        StillRunning: the port is taken.
        UnknownKnob, UnreadableValue: the configuration cannot be rendered.
    """
    if not port_is_free(port):
        raise StillRunning(f"port {port} is taken{_port_owner(port)}", remedy="End that process or choose another port")
    engine_id = secrets.token_hex(8)
    nonce = f"ratchet-{engine_id}"
    argv = [
        f"--model={model_path}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--served-model-name",
        config.model.name,
        nonce,
        *render_argv(config, catalogue),
    ]
    env = {
        **base_env(),
        **(extra_env or {}),
        **render_env(config),
        processes.ID_VARIABLE: engine_id,
        processes.OWNER_VARIABLE: owner,
    }
    log_path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {
        "engine_id": engine_id,
        "port": port,
        "nonce": nonce,
        "model_name": config.model.name,
        "log_path": log_path,
        "config_hash": config.config_hash(),
    }
    if prefork is not None and command is None and prefork.supports(config):
        prefork.wait_ready()
        return Engine(
            pid=prefork.fork(argv=argv, env=env, cores=cores, log_path=log_path.resolve()), prefork=prefork, **known
        )
    before = os.sched_getaffinity(0)
    try:
        if cores:
            # The child inherits it from the first instruction on; changing it afterwards would miss threads.
            os.sched_setaffinity(0, cores)
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*(command or (str(engine_python), "-m", MODULE)), *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, before)
    return Engine(pid=process.pid, process=process, **known)


def wait_ready(engine: Engine, timeout_s: float) -> float:
    """Wait until the engine that we started has answered one real completion; returns the seconds it took.

    The completion is asked for under a name that only this engine was given, so that a server that
    already listened on the port cannot pass for it.

    Raises:
        StartFailed: it ended, or did not answer in time (it is then still running: `stop` it).
    """
    started = time.monotonic()
    body = {"model": engine.nonce, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
    while time.monotonic() - started < timeout_s:
        if not engine.runs():
            raise StartFailed(engine.outcome("start"), engine.log_path)
        left_s = max(0.5, timeout_s - (time.monotonic() - started))
        with suppress(OSError, ValueError):
            if request(f"{engine.base_url}/completions", body, timeout_s=left_s).get("choices"):
                return time.monotonic() - started
        time.sleep(0.05)
    raise StartFailed(classify_exit(None, engine.log_tail(), "start"), engine.log_path)


def request(url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float, post: bool = False) -> dict[str, Any]:
    """One JSON request on loopback; an empty answer is {}. Raises OSError (HTTPError included) or ValueError."""
    data = json.dumps(body).encode() if body is not None else (b"" if post else None)
    asked = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business on loopback
    with opener.open(asked, timeout=timeout_s) as answer:
        text = answer.read()
    return dict(json.loads(text)) if text else {}


def health(engine: Engine) -> Outcome | None:
    """None while the engine is well; else how it died. An API server whose core is dead answers 503."""
    if not engine.runs():
        return engine.outcome("load")
    try:
        request(f"{engine.root_url}/health", timeout_s=10)
    except urllib.error.HTTPError as error:
        found = engine.outcome("load")
        if found.kind == "other":
            found = found.model_copy(update={"kind": "engine_dead", "detail": f"/health answered {error.code}"})
        return found
    except OSError as error:
        if not engine.runs():
            return engine.outcome("load")
        found = engine.outcome("load")
        return found.model_copy(update={"detail": f"/health does not answer: {error}"})
    return None


def stop(engine: Engine, *, grace_s: float = 10.0) -> int | None:
    """End the engine with everything that it started; returns its exit code where known.

    Raises:
        StillRunning: a process outlived SIGKILL, or the port is still taken.
    """
    left = processes.end(engine.members, grace_s=grace_s, terminate_first=(engine.pid,))
    if left:
        raise StillRunning(
            f"engine {engine.engine_id}: pid {', '.join(str(p.pid) for p in left)} outlived SIGKILL",
            remedy="The machine has to be looked at before the next trial",
        )
    if engine.process is not None:
        with suppress(subprocess.TimeoutExpired):
            engine.process.wait(timeout=5)
    deadline = time.monotonic() + 5
    while not port_is_free(engine.port):
        if time.monotonic() > deadline:
            raise StillRunning(
                f"port {engine.port} is still taken{_port_owner(engine.port)} after engine "
                f"{engine.engine_id} was stopped",
                remedy="End that process",
            )
        time.sleep(0.05)
    return engine.exit_code()


def move(engine: Engine, cores: tuple[int, ...]) -> None:
    """Put every thread of a serving engine, its OpenMP pool included, on these cores."""
    for process in engine.members():
        with suppress(psutil.Error):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)


def hold(engine: Engine, *, held: bool) -> None:
    """Stop every process of an engine where it is, or let it go on. Its clients wait; nothing is lost."""
    for process in engine.members():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)


def sweep_orphans(owner_marker: str) -> list[int]:
    """End every engine and fork server that was started for `owner_marker`; returns their pids.

    Raises:
        StillRunning: one outlived SIGKILL.
        ValueError: an empty marker, which would match engines of anybody.
    """
    if not owner_marker:
        raise ValueError("an owner marker is needed")
    found = [process.pid for process in processes.of_owner(owner_marker)]
    if found and (left := processes.end(lambda: processes.of_owner(owner_marker), grace_s=3.0)):
        raise StillRunning(
            f"orphaned engine processes of {owner_marker}: pid {', '.join(str(p.pid) for p in left)} outlived SIGKILL"
        )
    return found


def reset_prefix_cache(engine: Engine) -> None:
    """Empty the prefix cache, so that a repeat does not profit from the run before (case LG5).

    Raises:
        EngineFailed: the engine did not do it.
    """
    try:
        request(f"{engine.root_url}/reset_prefix_cache", timeout_s=30, post=True)
    except OSError as error:
        raise EngineFailed(
            f"the prefix cache of engine {engine.engine_id} could not be reset: {error}",
            remedy="Restart the engine before the next run",
        ) from None


def peak_rss_bytes(engine: Engine) -> int | None:
    """Sum of the peak resident sizes of the engine's processes, in bytes; None when none can be read.

    Shared pages count in each process, so it is an upper bound.
    """
    total = 0
    for process in engine.members():
        with suppress(OSError, ValueError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024
    return total or None


def forget_peak_rss(engine: Engine) -> None:
    """Begin to count the peaks anew from what is resident now, where the kernel lets it (`clear_refs`).

    Without it an engine that has served many runs has another past in its peak than one that was just loaded.
    """
    for process in engine.members():
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _port_owner(port: int) -> str:
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f" by pid {connection.pid}"
    return ""
