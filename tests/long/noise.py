"""A process that burns one core in bursts of random length, and an A/A beside it, and the demo's A/B."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from deployments.demo.load import Load
from deployments.demo.production import old_configuration
from infra.bench.duet import Duet, Span
from infra.bench.engines import close_bench, open_bench
from infra.bench.workload import WorkloadPlan
from infra.replay.records import ReplayOptions
from infra.sampling.sample import save_sample
from infra.settings.sandbox import SandboxSettings
from infra.traffic.shape import planned_sample
from tasks.hypothesis.records import Scalar
from tasks.shared.paired import Effect, Estimate, effect_of, estimate, log_ratio, looks, pairs_to_decide
from tests.long.demo import TOGETHER
from tests.long.marks import ROOT, Checks
from tests.rules.trial_records import DEMO

LONGEST_S = 12.0
TRIALS, MOST_PAIRS = 2, 12
PLAN = WorkloadPlan(workload="saturating", options=ReplayOptions(mode="closed", concurrency=12, warmup=2), limit_s=1e4)


def burn() -> None:
    """Without end: busy for up to LONGEST_S, then idle for as long again, each time by chance."""
    chance = random.Random(7)
    while True:
        until_s = time.monotonic() + chance.uniform(0.1, LONGEST_S)
        while time.monotonic() < until_s:
            pass
        time.sleep(chance.uniform(0.1, LONGEST_S))


@contextmanager
def burning() -> Iterator[subprocess.Popen[bytes]]:
    """The process, for the length of the block."""
    child = subprocess.Popen([sys.executable, "-c", "from tests.long.noise import burn; burn()"], cwd=ROOT)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def noise_a_a() -> dict[str, Any]:
    """Nothing against nothing beside the burning process: no trial may be called a win or a loss."""
    classes, said = _trials({}, TRIALS)
    check = Checks()
    check("nothing is called a win or a loss", not {"effective", "regression"} & set(classes), classes)
    return check.result("; ".join(said))


def noise_a_b() -> dict[str, Any]:
    """The demo's old configuration against what it adopts, beside the burning process: a win, or undecided."""
    classes, said = _trials(TOGETHER, 2)
    check = Checks()
    check("no gain is called a loss or nothing", not {"regression", "no effect"} & set(classes), classes)
    return check.result("; ".join(said))


def _trials(changes: dict[str, Scalar], n: int) -> tuple[list[str], list[str]]:
    """`n` trials in closed loop, MOST_PAIRS at most: what each is called, and its figures."""
    load, measuring = Load(1.3), DEMO.measuring
    sample = planned_sample(load.recorded(load.phases[0]), load.shape.strata)
    candidate = old_configuration()
    for knob, value in changes.items():
        candidate = candidate.with_arg(knob, value)
    classes: list[str] = []
    said: list[str] = []
    with tempfile.TemporaryDirectory() as name, burning():
        folder = Path(name)
        save_sample(sample, folder / "s.parquet")
        try:
            with open_bench(SandboxSettings(work_dir=folder / "work")) as bench:
                sides = bench.pair(old_configuration(), candidate)
                for _ in range(n):
                    duet = Duet(bench, sides.baseline, sides.candidate, folder / "spans")
                    with closing(duet.closed(folder / "s.parquet", PLAN, measuring.span_s)) as pairs:
                        effect, found = _judged(pairs)
                    more = pairs_to_decide(found, measuring.smallest_gain_pct) if effect == "unstable" else None
                    classes.append(effect)
                    said.append(f"{effect}: {found.text()}" + (f", {more} would decide it" if more else ""))
        finally:
            close_bench()
    return classes, said


def _judged(pairs: Iterator[tuple[Span, Span]]) -> tuple[Effect, Estimate]:
    ratios: list[float] = []
    for pair in pairs:
        d = log_ratio([(s.baseline.tokens_per_s, s.candidate.tokens_per_s) for s in pair])
        ratios += [] if d is None else [d]
        found = estimate(ratios)
        effect = effect_of(found, DEMO.measuring.smallest_gain_pct) if len(ratios) in looks(MOST_PAIRS) else "unstable"
        if found is not None and (effect != "unstable" or len(ratios) >= MOST_PAIRS):
            return effect, found
    raise AssertionError("the pairs ended")
