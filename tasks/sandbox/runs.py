"""What a pair's runs are made of, which of them count, and what is kept of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from infra.bench.measure import MeasuredRun, stratum_path
from infra.bench.workload import WorkloadPlan
from infra.engine.config import ServingConfig
from infra.sampling.sample import load_sample, make_sample, save_sample, strata_from_bounds
from infra.settings.sandbox import SandboxSettings
from infra.store import ObjectStore
from tasks.baseline.records import SampleRef
from tasks.sandbox.readings import disturbances, run_readings
from tasks.sandbox.records import RunReadings
from tasks.sandbox.workloads import plans, slots_of
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import SamplingPolicy

MAX_FOREIGN_CPU_PCT = 15.0
MAX_STEAL_PCT = 5.0


def fetch_sample(store: ObjectStore, ref: SampleRef, folder: Path, m: SamplingPolicy) -> tuple[Path, frozenset[str]]:
    """The sample in `folder`, each stratum of it beside it, and which strata there are."""
    path = folder / "sample.parquet"
    path.write_bytes(store.get(ref.key))
    sample = load_sample(path, strata_from_bounds(m.short_below_tokens, m.medium_below_tokens))
    present = frozenset(e.stratum for e in sample.entries)
    for stratum in present:
        part = make_sample((e for e in sample.entries if e.stratum == stratum), sample.strata)
        save_sample(part, stratum_path(path, stratum))
    return path, present


def loads_of(
    params: CampaignParams,
    measuring: SamplingPolicy,
    sample: SampleRef,
    strata: frozenset[str],
    *configs: ServingConfig,
    passes: int = 1,
    recorded_runs: int = 0,
) -> tuple[WorkloadPlan, ...]:
    """The runs of one side that the criteria ask for on this sample and these engines."""
    return plans(
        measuring,
        time_scale=params.time_scale,
        slots=slots_of(*configs),
        strata=strata,
        requests=sample.requests,
        duration_s=sample.duration_s,
        passes=passes,
        recorded_runs=recorded_runs,
    )


def memory_limit_bytes(settings: SandboxSettings) -> float | None:
    """The memory against which the search's penalty counts (spec C5); None where it is not known."""
    if settings.memory_limit_bytes is None and settings.accelerator == "cpu":
        return float(psutil.virtual_memory().total)
    return settings.memory_limit_bytes


def void(run: MeasuredRun) -> bool:
    """Whether the machine spoiled the run; one in which the engine served nothing is the engine's own result."""
    found = disturbances(run, max_foreign_cpu_pct=MAX_FOREIGN_CPU_PCT, max_steal_pct=MAX_STEAL_PCT)
    return bool(found) and run.result.summary.ok > 0


def undisturbed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs that count."""
    return [run for run in runs if not void(run)]


def keep(
    store: ObjectStore,
    settings: SandboxSettings,
    run: MeasuredRun,
    side_memory: float | None,
) -> RunReadings:
    """A run\'s requests in S3, and its readings."""
    key = store.put_content("requests", run.requests_path.read_bytes(), ".parquet")
    return run_readings(
        run,
        requests_key=key,
        cores=settings.engine_cores,
        accelerator=settings.accelerator,
        accelerators=settings.accelerators,
        max_foreign_cpu_pct=MAX_FOREIGN_CPU_PCT,
        max_steal_pct=MAX_STEAL_PCT,
        peak_memory_bytes=side_memory,
    )
