"""The demo to its end, and the demo killed in the middle of what its own log says it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psutil

from deployments.demo.children import RUN_MARK, end_leftovers
from infra.stack.control import stack_down
from infra.traffic.fleet import retire_everything
from tasks.hypothesis.records import Scalar
from tests.long.marks import ROOT, STATE, Checks, alive, is_engine, is_stack, of_state, python, wait_for

TOGETHER: dict[str, Scalar] = {"enable_prefix_caching": True, "max_num_seqs": 8}
STACK_ANSWERS = "the Prefect server answer"
STABLE_SERVES = "stable serves with settings"


def demo(seed: int, beside: Callable[[], AbstractContextManager[object]] = nullcontext) -> dict[str, Any]:
    """The demo to its end: it adopts what helps, refuses the tempting change and drills.

    Args:
        beside: what else the machine does meanwhile.
    """
    file = STATE / f"demo-{seed}.json"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    with (STATE / f"demo-{seed}.log").open("w") as log, beside():
        done = subprocess.run(
            python("deployments.cli", "demo", "--seed", seed, "--json", file),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=3 * 3600,
            check=False,
        )
    took_s = time.monotonic() - started
    if not file.exists():
        return {"passed": False, "what": f"exit code {done.returncode}, no figures; see {log.name}"}
    data = json.loads(file.read_text())
    before, after = data["production"]["before"], data["production"]["after"]
    refused = [r["changes"] for r in data["refused_by_guard"]]
    check = Checks()
    check("exit code 0", done.returncode == 0, done.returncode)
    check("adopted both knobs", data["adopted"] == TOGETHER, data["adopted"])
    losers = [h for h in data["hypotheses"] if h["class"] == "regression" and h["knob"] in TOGETHER]
    check("called no gain a regression", not losers, losers)
    check("refused a lower max_model_len", any("max_model_len" in r for r in refused))
    check("drilled", data["drill"]["decision_to_last_request_ms"] is not None)
    check("both readings", before["throughput_per_gpu"] is not None and after.get("throughput_per_gpu") is not None)
    return check.result(
        f"adopted {data['adopted']}; refused {refused}; "
        f"production {_said(before['throughput_per_gpu'])} -> {_said(after.get('throughput_per_gpu'))} tok/s, "
        f"P99 {_said(before['p99_latency'])} -> {_said(after.get('p99_latency'))} ms; "
        f"sandbox {_said(data['sandbox_prediction_pct'])} %, production {_said(data['production_answer_pct'])} %; "
        f"drill {_said(data['drill']['decision_to_last_request_ms'])} ms; {took_s:.0f} s"
    )


def _said(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:.1f}"


class Demo:
    """A demo in a process of its own, and what its log says."""

    def __init__(self, state: Path, log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.child = subprocess.Popen(
                python("deployments.cli", "demo", "--seed", 9),
                cwd=ROOT,
                env={**os.environ, "RATCHET_STATE": str(state)},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def wait_until_it_says(self, words: Sequence[str], limit_s: float) -> str:
        """The first line of its log that holds one of `words`.

        Raises:
            TimeoutError: no such line came, or the demo ended before; the last line is in the message.
        """
        found = ""

        def said() -> bool:
            nonlocal found
            lines = self.log.read_text(errors="replace").splitlines()
            found = next((line for line in lines if any(word in line for word in words)), "")
            if not found and self.child.poll() is not None:
                raise TimeoutError(f"the demo ended with {self.child.returncode} before it said {words}: {lines[-1:]}")
            return bool(found)

        wait_for(f"{self.log} says one of {list(words)}", said, limit_s)
        return found.strip()


def killed(words: Sequence[str], limit_s: float, under_way: Callable[[psutil.Process], bool]) -> dict[str, Any]:
    """A demo killed with SIGKILL leaves a mess that the next one cleans up before it measures anything.

    Args:
        words: the demo is killed when a line of its log holds one of them.
        limit_s: how long that may take.
        under_way: what of the things left must be there, or nothing was killed that mattered.
    """
    state = STATE / "killed"
    check = Checks()
    first = Demo(state, STATE / "killed-first.log")
    again: Demo | None = None
    try:
        line = first.wait_until_it_says(words, limit_s)
        first.child.kill()
        first.child.wait()
        left = of_state(state)
        if not any(under_way(p) for p in left):
            return {"passed": False, "what": f"killed at {line!r}: nothing was under way, {len(left)} processes left"}
        kinds = f"{sum(map(is_engine, left))} of engines, {sum(map(is_stack, left))} of the stack"
        must_end = [p for p in left if is_engine(p) or RUN_MARK in _environment(p)]
        again = Demo(state, STATE / "killed-again.log")
        again.wait_until_it_says([STACK_ANSWERS], 180)
        survivors = [p.pid for p in must_end if alive(p)]
        check("the next demo ends what was left before it starts", not survivors, survivors)
        again.wait_until_it_says([STABLE_SERVES], 300)
        check("and runs", again.child.poll() is None, again.child.returncode)
        again.child.send_signal(signal.SIGTERM)
        code = again.child.wait(timeout=180)
        check("SIGTERM ends it with 130", code == 130, code)
        after = of_state(state)
        check("and leaves nothing", not after, [p.pid for p in after])
    finally:
        for one in (first, again):
            if one is not None and one.child.poll() is None:
                one.child.terminate()
                one.child.wait(timeout=180)
        end_leftovers(state)
        retire_everything(state)
        stack_down(state)
    return check.result(f"killed at {line!r} with {len(left)} processes left ({kinds})")


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}
