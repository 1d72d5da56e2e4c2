"""What a trial is made of: its sample, its loads, the memory that it may take."""

from __future__ import annotations

from pathlib import Path

import psutil

from infra.bench.measure import stratum_path
from infra.bench.workload import WorkloadPlan
from infra.engine.config import ServingConfig
from infra.sampling.sample import load_sample, make_sample, save_sample, strata_from_bounds
from infra.settings.sandbox import SandboxSettings
from infra.store import ObjectStore
from tasks.baseline.records import SampleRef
from tasks.sandbox.workloads import plans, slots_of
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import SamplingPolicy


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
) -> tuple[WorkloadPlan, ...]:
    """The loads that the criteria ask for on this sample and these engines."""
    return plans(
        measuring,
        time_scale=params.time_scale,
        slots=slots_of(*configs),
        strata=strata,
        duration_s=sample.duration_s,
    )


def memory_limit_bytes(settings: SandboxSettings) -> float | None:
    """The memory against which the search's penalty counts (spec C5); None where it is not known."""
    if settings.memory_limit_bytes is None and settings.accelerator == "cpu":
        return float(psutil.virtual_memory().total)
    return settings.memory_limit_bytes
