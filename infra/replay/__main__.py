"""`python -m infra.replay`: one replay, or with `--serve` the fork server behind `run_replay_process`.

0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from pydantic import ValidationError

from infra.errors import BadInput, RatchetError, os_fault
from infra.replay.fork_server import serve
from infra.replay.records import ReplayOptions
from infra.replay.runner import run_replay
from infra.sampling.sample import load_sample


def main(argv: Sequence[str] | None = None) -> int:
    """Replay one sample as told on the command line; the result is in the files."""
    parser = argparse.ArgumentParser(prog="python -m infra.replay")
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--options", default="{}", help="ReplayOptions as JSON")
    parser.add_argument("--cores", default="", help="comma-separated; empty for no pinning")
    parser.add_argument("--parent", type=int, default=0, help="end when this process is gone")
    given = parser.parse_args(argv)
    try:
        pin_to_cores(given.cores)
        options = ReplayOptions.model_validate_json(given.options)
        if given.parent:
            threading.Thread(target=_end_with, args=(given.parent,), daemon=True).start()
        run_replay(load_sample(given.sample), given.base_url, given.model, given.out, options)
    except ValidationError as error:
        fault = error.errors()[0]
        sys.stderr.write(f"replay options: {'.'.join(map(str, fault['loc']))}: {fault['msg']}\n")
        return 2
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"{os_fault(error)}\n")
        return 2
    return 0


def pin_to_cores(cores: str) -> None:
    """Keep this process on the given cores ("1" or "1,3"). BadInput for one that is not there."""
    if not cores:
        return
    wanted = {int(core) for core in cores.split(",")}
    missing = wanted - os.sched_getaffinity(0)
    if missing:
        raise BadInput(
            f"cores {sorted(missing)} are not available here",
            remedy=f"Choose from {sorted(os.sched_getaffinity(0))}, or none to run unpinned",
        )
    os.sched_setaffinity(0, wanted)


def _end_with(parent: int) -> None:
    """A replay whose starter was killed must not go on loading the engine."""
    server = os.getppid()
    while os.getppid() == server and psutil.pid_exists(parent):
        time.sleep(0.5)
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(sys.stdin.buffer, sys.stdout.buffer, main)
    else:
        sys.exit(main())
