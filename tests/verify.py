"""`make verify`: what takes longer than CI. Resumable: an item that passed at this commit is not run again.

    python -m tests.verify            all items that are left
    python -m tests.verify --list     what there is, and what is done
    python -m tests.verify demo-1     one item

Results go to `docs/verified.md`, each with its conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".ratchet" / "verify"
PAGE = ROOT / "docs" / "verified.md"
DEMO_LIMIT_S = 1200.0


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", ".", ":!docs/verified.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def demo(seed: int) -> dict[str, Any]:
    """The demo to its end: it adopts, refuses the tempting change, drills, and stays inside its time."""
    file = STATE / f"demo-{seed}.json"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    with (STATE / f"demo-{seed}.log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "deployments.cli", "demo", "--seed", str(seed), "--json", str(file)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=3600,
            check=False,
        )
    took_s = time.monotonic() - started
    if not file.exists():
        return {"passed": False, "what": f"exit code {done.returncode}, no figures; see {log.name}"}
    data = json.loads(file.read_text())
    before, after = data["production"]["before"], data["production"]["after"]
    refused = [r["changes"] for r in data["refused_by_guard"]]
    checks = {
        "exit code 0": done.returncode == 0,
        "adopted prefix caching": bool(data["adopted"]) and data["adopted"].get("enable_prefix_caching") is True,
        "refused a lower max_model_len": any("max_model_len" in r for r in refused),
        "drilled": data["drill"]["decision_to_last_request_ms"] is not None,
        "both readings": before["throughput_per_gpu"] is not None and after["throughput_per_gpu"] is not None,
        f"inside {DEMO_LIMIT_S:.0f} s": took_s <= DEMO_LIMIT_S,
    }
    failed = [name for name, holds in checks.items() if not holds]
    text = (
        f"adopted {data['adopted']}; refused {refused}; production {before['throughput_per_gpu']} -> "
        f"{after['throughput_per_gpu']} tok/s, P99 {before['p99_latency']} -> {after['p99_latency']} ms; sandbox "
        f"{data['sandbox_prediction_pct']} %, production {data['production_answer_pct']} %; drill "
        f"{data['drill']['decision_to_last_request_ms']} ms; {took_s:.0f} s"
    )
    return {"passed": not failed, "what": text + (f"; FAILED: {', '.join(failed)}" if failed else "")}


def killed(after_s: float) -> dict[str, Any]:
    """A demo killed with SIGKILL leaves a mess that the next start of one cleans up."""
    state = STATE / "killed"
    environment = {**os.environ, "RATCHET_STATE": str(state)}
    command = [sys.executable, "-m", "deployments.cli", "demo", "--seed", "9"]
    with (STATE / "killed.log").open("w") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        left = _of(state)
        again = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        time.sleep(60)
        running = again.poll() is None
        survivors = [
            p
            for p in left
            if psutil.pid_exists(p)
            and "supervisor" not in _command(p)
            and psutil.Process(p).status() != psutil.STATUS_ZOMBIE
            and _engine(p)
        ]
        again.send_signal(signal.SIGTERM)
        code = again.wait(timeout=180)
    after = [p for p in _of(state) if psutil.Process(p).status() != psutil.STATUS_ZOMBIE]
    passed = running and not survivors and not after and code == 130
    return {
        "passed": passed,
        "what": f"killed after {after_s:.0f} s with {len(left)} processes left; the next demo ran: "
        f"{running}, engines that survived: {len(survivors)}; after its end {len(after)} processes, exit code {code}",
    }


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _engine(pid: int) -> bool:
    try:
        return "RATCHET_ENGINE_ID" in psutil.Process(pid).environ()
    except psutil.Error:
        return False


def _of(state: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(state) in value for value in process.environ().values()) and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


ITEMS: dict[str, Callable[[], dict[str, Any]]] = {
    "demo-1": lambda: demo(1),
    "demo-2": lambda: demo(2),
    "demo-3": lambda: demo(3),
    "killed-early": lambda: killed(20),
    "killed-in-the-campaign": lambda: killed(240),
}


def write_page(results: dict[str, dict[str, Any]]) -> None:
    lines = [
        "# Verified",
        "",
        "Written by `make verify`; the last result of each item with its conditions.",
        "",
        "| item | result | commit | date | machine | what |",
        "|---|---|---|---|---|---|",
    ]
    for name in ITEMS:
        r = results.get(name)
        if r is None:
            lines.append(f"| {name} | not run | | | | |")
        else:
            lines.append(
                f"| {name} | {'pass' if r['passed'] else 'FAIL'} | {r['commit']} | {r['date']} | {r['machine']} | "
                f"{r['what'].replace('|', '/')} |"
            )
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", help=f"some of {', '.join(ITEMS)}; all by default")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.items) - set(ITEMS):
        parser.error(f"no item {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    STATE.mkdir(parents=True, exist_ok=True)
    file = STATE / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    at = commit()
    for name in given.items or ITEMS:
        done = results.get(name)
        if given.list:
            print(f"{name:24} {'passed at ' + done['commit'] if done and done['passed'] else 'to do'}")
            continue
        if done and done["passed"] and done["commit"] == at and "+" not in at and not given.items:
            print(f"{name}: passed at this commit already")
            continue
        print(f"{name}: running", flush=True)
        try:
            result = ITEMS[name]()
        except Exception as error:
            result = {"passed": False, "what": f"{type(error).__name__}: {error}"}
        result |= {
            "commit": at,
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.machine()}",
        }
        results[name] = result
        file.write_text(json.dumps(results, indent=1))
        write_page(results)
        print(f"{name}: {'pass' if result['passed'] else 'FAIL'}: {result['what']}", flush=True)
    return 0 if all(r["passed"] for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
