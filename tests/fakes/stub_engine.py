"""A server that behaves like an engine in one way at a time. Run: stub_engine.py MODE [engine arguments].

serve            answers completions for its served names, as the engine does
usage            prints a usage error and exits with 2 after 0.2 s
cache_blocks     dies while starting with the engine's message about cache blocks
validation       dies while starting with a validation error
killed           kills itself with SIGKILL while starting
address          dies while starting because its port is taken
slow             never becomes ready
stubborn_child   serves, and has a child in a session of its own that ignores SIGTERM
oom_after=N      serves N completions, then dies with an out-of-memory traceback
core_dead        serves, but /health answers 503 after the first completion
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1]


def argument(name: str) -> str:
    return next(a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}="))


def served_names() -> list[str]:
    names = []
    for word in sys.argv[sys.argv.index("--served-model-name") + 1 :]:
        if word.startswith("--"):
            break
        names.append(word)
    return names


def leave(text: str, code: int) -> None:
    print(text, file=sys.stderr, flush=True)
    os._exit(code)


class Handler(BaseHTTPRequestHandler):
    served = 0

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, code: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        dead = MODE == "core_dead" and Handler.served > 0
        self.answer(503 if dead else 200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/reset_prefix_cache":
            return self.answer(200, {})
        if body.get("model") not in served_names():
            return self.answer(404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}})
        Handler.served += 1
        if MODE.startswith("oom_after=") and Handler.served > int(MODE.split("=")[1]):
            leave(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
                1,
            )
        return self.answer(200, {"choices": [{"text": "4"}], "model": body["model"]})


def main() -> None:
    if MODE == "usage":
        time.sleep(0.2)
        leave("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --swap-space 8", 2)
    if MODE == "cache_blocks":
        leave(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
            "RuntimeError: Engine core initialization failed. See root cause above.",
            1,
        )
    if MODE == "validation":
        leave(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (8192).",
            1,
        )
    if MODE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "address":
        leave("OSError: [Errno 98] Address already in use", 1)
    if MODE == "slow":
        time.sleep(600)
    if MODE == "stubborn_child":
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
                "print('child', flush=True); time.sleep(600)",
            ],
            start_new_session=True,
        )
    server = ThreadingHTTPServer(("127.0.0.1", int(argument("port"))), Handler)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.serve_forever()


main()
