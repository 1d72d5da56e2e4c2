"""Imports the engine once and forks it for each start. Run by the engine's interpreter: prefork.py SOCKET.

Importing the engine takes most of a cold start, twice (API server and engine core). Here it happens once:
each request on the socket forks a child that gets its own session, cores, environment, arguments and log and
runs the engine's own `main`, as `python -m vllm.entrypoints.openai.api_server` would.

One JSON object a connection, one back:
    {"op": "start", "argv": […], "env": {…}, "cores": […], "log": "…"} → {"pid": 1}
    {"op": "poll", "pid": 1} → {"running": true} or {"running": false, "exit_code": 1}
    {"op": "ping"} → {"ready": true}

It ends when its standard input closes, that is with its owner; engines that it started are left to the owner's
sweep. Exit codes of children that ended are kept until it ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

REQUEST_LIMIT = 1 << 20


def preload() -> None:
    """Import what a start imports, and let the engine core be forked instead of spawned."""
    import multiprocessing

    import vllm.entrypoints.launchers.api_server.entry
    import vllm.entrypoints.launchers.cli_args
    import vllm.model_executor.models.llama
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core
    import vllm.v1.engine.utils
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker

    # The CPU platform always asks for spawn, which would import everything again in the engine core.
    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    for optional in (
        "uvicorn.protocols.http.httptools_impl",
        "uvicorn.lifespan.on",
        "xgrammar",
        "tokenizers",
        "transformers.models.llama.configuration_llama",
        "transformers.tokenization_utils_tokenizers",
        "vllm.v1.attention.backends.cpu_attn",
        "vllm.entrypoints.openai.completion.api_router",
    ):
        try:
            __import__(optional)
        except ImportError:
            continue
    _build_app_once()
    gc.collect()
    gc.freeze()


def _build_app_once() -> None:
    """Parse an empty command line: the parser reads the sources of all configuration classes."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make_arg_parser(FlexibleArgumentParser())


def run_child(request: dict[str, Any]) -> None:
    """Become the engine; never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request.get("cores"):
            os.sched_setaffinity(0, request["cores"])
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for handle in os.listdir("/proc/self/fd"):
            if int(handle) > 2:
                try:
                    if os.readlink(f"/proc/self/fd/{handle}").startswith(("socket:", "pipe:")):
                        os.close(int(handle))
                except OSError:
                    continue
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["api_server.py", *request["argv"]]
        from vllm.entrypoints.launchers.api_server.entry import main as serve

        serve()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class Forks:
    """The children and their exit codes."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.ended: dict[int, int] = {}

    def reap(self) -> None:
        for pid in list(self.running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.running.discard(pid)
                self.ended[pid] = os.waitstatus_to_exitcode(status)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.reap()
        if request["op"] == "ping":
            return {"ready": True}
        if request["op"] == "poll":
            pid = int(request["pid"])
            if pid in self.running:
                return {"running": True}
            return {"running": False, "exit_code": self.ended.get(pid)}
        if request["op"] == "start":
            pid = os.fork()
            if pid == 0:
                run_child(request)
            self.running.add(pid)
            return {"pid": pid}
        return {"error": f"unknown op {request['op']!r}"}


def serve_forever(listener: socket.socket) -> None:
    """Answer requests until standard input closes."""
    forks = Forks()
    watch = selectors.DefaultSelector()
    watch.register(listener, selectors.EVENT_READ)
    watch.register(0, selectors.EVENT_READ)
    while True:
        events = watch.select(timeout=1.0)
        forks.reap()
        for key, _ in events:
            if key.fileobj == 0:
                if not os.read(0, 4096):
                    return
                continue
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                try:
                    line = connection.makefile("r").readline(REQUEST_LIMIT)
                    reply = forks.answer(json.loads(line))
                except (ValueError, KeyError, OSError) as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                try:
                    connection.sendall(json.dumps(reply).encode() + b"\n")
                except OSError:
                    continue


def main() -> int:
    path = Path(sys.argv[1])
    preload()
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    os.umask(0o177)
    listener.bind(str(path))
    os.umask(0o022)
    listener.listen(16)
    print("prefork: ready", flush=True)
    try:
        serve_forever(listener)
    finally:
        path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    # The module that multiprocessing would name to a spawned child must not start a second server.
    sys.exit(main())
