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
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psutil

from infra.engine.embedded import cpu_dtype
from tests.bench.judge import judge_of_the_judge
from tests.bench.replay_truth import replay_truth
from tests.long.demo import STABLE_SERVES, demo, killed
from tests.long.deployments import prefect_deployments
from tests.long.marks import ROOT, STATE, is_engine
from tests.long.noise import burning, noise_a_a, noise_a_b
from tests.long.rollout import killed_in_the_rollout

PAGE = ROOT / "docs" / "verified.md"
COLUMNS = 6


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


ITEMS: dict[str, Callable[[], dict[str, Any]]] = {
    "demo-1": lambda: demo(1),
    "demo-2": lambda: demo(2),
    "demo-3": lambda: demo(3),
    "demo-beside-a-burning-process": lambda: demo(4, burning),
    "a-a-beside-a-burning-process": noise_a_a,
    "a-b-beside-a-burning-process": noise_a_b,
    "judge": judge_of_the_judge,
    "replay-truth": replay_truth,
    "killed-early": lambda: killed([STABLE_SERVES], 300, is_engine),
    "killed-in-the-campaign": lambda: killed(["A/A: saturating pair"], 900, is_engine),
    "killed-in-the-rollout": killed_in_the_rollout,
    "prefect-deployments": prefect_deployments,
}


def machine() -> str:
    """Cores, memory, architecture, and what the CPU serves with: cores with bfloat16 are several times as fast."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.machine()}, serves {cpu_dtype()}"


def write_page(results: dict[str, dict[str, Any]]) -> None:
    """The page anew. What was last run elsewhere keeps its row: each row names its commit and machine."""
    old = PAGE.read_text().splitlines() if PAGE.exists() else []
    elsewhere = {line.split("|")[1].strip(): line for line in old if line.count("|") == COLUMNS + 1}
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
            lines.append(elsewhere.get(name, f"| {name} | not run | | | | |"))
        else:
            lines.append(
                f"| {name} | {'pass' if r['passed'] else 'FAIL'} | {r['commit']} | {r['date']} | {r['machine']} | "
                f"{r['what'].replace('|', '/')} |"
            )
    for name in ITEMS:
        table = results[name].get("table", []) if name in results else _section(old, name)
        if table:
            lines += ["", f"## {name}", "", *table]
    PAGE.write_text("\n".join(lines) + "\n")


def _section(page: list[str], name: str) -> list[str]:
    """What stands under an item's own heading."""
    if f"## {name}" not in page:
        return []
    below = page[page.index(f"## {name}") + 1 :]
    ends = next((i for i, line in enumerate(below) if line.startswith("## ")), len(below))
    return "\n".join(below[:ends]).strip().splitlines()


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
            "machine": machine(),
        }
        results[name] = result
        file.write_text(json.dumps(results, indent=1))
        write_page(results)
        print(f"{name}: {'pass' if result['passed'] else 'FAIL'}: {result['what']}", flush=True)
    return 0 if all(r["passed"] for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
