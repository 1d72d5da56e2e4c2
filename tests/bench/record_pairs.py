"""Pairs of two engines of one configuration, recorded on this machine: what the judge of the judge is fed with.

    python -m tests.bench.record_pairs OUT.json --pairs 24 --span-s 8

Two designs by turns, block by block, so that both meet the same unrest: the duet (both sides at once on two slots), and
runs in turn (on one slot, one side after the other, a span each). Real vLLM with the demo's old configuration and the
demo's traffic. Needs `make engine`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from deployments.demo.load import Load
from deployments.demo.production import old_configuration
from infra.bench.duet import Duet, Span
from infra.bench.engines import close_bench, open_bench
from infra.bench.workload import WorkloadPlan
from infra.engine.config import ServingConfig
from infra.engine.embedded import cpu_dtype
from infra.replay.records import ReplayOptions
from infra.sampling.sample import save_sample
from infra.settings.sandbox import SandboxSettings
from infra.traffic.shape import planned_sample

PLAN = WorkloadPlan(workload="saturating", options=ReplayOptions(mode="closed", concurrency=12, warmup=2), limit_s=1e5)


def spans_of(pair: tuple[Span, Span]) -> list[list[float]]:
    """(baseline, candidate) tokens a second of a pair, order AB first."""
    return [
        [round(s.baseline.tokens_per_s, 3), round(s.candidate.tokens_per_s, 3)]
        for s in sorted(pair, key=lambda s: s.order)
    ]


def record(pairs: int, span_s: float, changes: dict[str, Any], block: int = 4) -> dict[str, Any]:
    """All pairs by design, with the seconds that a pair took."""
    config = old_configuration()
    other: ServingConfig = config
    for knob, value in changes.items():
        other = other.with_arg(knob, value)
    load = Load(1.3)
    sample = planned_sample(load.recorded(load.phases[0]), load.shape.strata)
    found: dict[str, Any] = {name: {"pair_s": 0.0, "pairs": []} for name in ("duet", "in_turn")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_sample(sample, folder / "s.parquet")
        settings = SandboxSettings(work_dir=folder / "work")
        try:
            with open_bench(settings) as bench:
                sides = bench.pair(config, other)
                while len(found["in_turn"]["pairs"]) < pairs:
                    for design, into in found.items():
                        bench._settings = (
                            settings if design == "duet" else settings.model_copy(update={"slots": ((0,),)})
                        )
                        began_s = time.monotonic()
                        duet = Duet(bench, sides.baseline, sides.candidate, folder / "spans")
                        with closing(duet.closed(folder / "s.parquet", PLAN, span_s)) as stream:
                            next(stream)  # the first pair of a stream is its warm-up
                            began_s = time.monotonic()
                            new = [spans_of(p) for p in islice(stream, block)]
                        into["pairs"] += new
                        into["pair_s"] = round((time.monotonic() - began_s) / block, 2)
                        print(design, len(into["pairs"]), new, flush=True)
        finally:
            close_bench()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--span-s", type=float, default=8.0)
    parser.add_argument("--changes", type=json.loads, default={}, help='JSON, e.g. {"max_num_seqs": 8}: A/B')
    given = parser.parse_args()
    found = record(given.pairs, given.span_s, given.changes)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, serves {cpu_dtype()}"
    head = {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine,
        "span_s": given.span_s,
        "changes": given.changes,
    }
    given.out.write_text(json.dumps({**head, **found}) + "\n")


if __name__ == "__main__":
    main()
