"""Where the baseline's engine spends its CPU time, from an unmeasured run in the sandbox (spec L1)."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from prefect import task
from prefect.logging import get_run_logger

from infra.bench.engines import open_bench
from infra.bench.profile import STACKS_FILE, profile_engine
from infra.bench.stacks import CpuProfile
from infra.connect import open_store
from infra.errors import RatchetError
from infra.settings.sandbox import SandboxSettings
from tasks.baseline.records import BaselineReport
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria


@task(name="profile: the CPU side", retries=0)
def profile_cpu_side(params: CampaignParams, criteria: Criteria, baseline: BaselineReport) -> CpuProfile:
    """The profile of the campaign; taken once, and unknown with its cause where it cannot be taken.

    The stacks lie under `campaigns/<campaign>/profiles/`, for whoever wants to draw a flame graph.
    """
    log = get_run_logger()
    started_s = time.monotonic()
    if baseline.samples is None:
        return CpuProfile.unknown("the campaign has no sample to replay")
    store, settings, key = open_store(), SandboxSettings(), f"campaigns/{params.campaign}/profile.json"
    if store.exists(key):
        return store.get_record(key, CpuProfile)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = folder / "sample.parquet"
        sample.write_bytes(store.get(baseline.samples.search.key))
        try:
            with open_bench(settings) as bench:
                engine = bench.baseline(baseline.config)
                bench.place("AB")
                profile = profile_engine(
                    engine,
                    sample,
                    folder,
                    concurrency=criteria.measuring.saturating_concurrency,
                    client_cores=settings.client_cores or settings.slots[-1],
                )
        except RatchetError as fault:
            profile = CpuProfile.unknown(f"no engine to profile: {fault}")
        if (stacks := folder / STACKS_FILE).exists():
            store.put_content(f"campaigns/{params.campaign}/profiles", stacks.read_bytes(), ".txt")
    log.info("CPU side: %s, taken in %.0f s", profile.cpu_side.text(), time.monotonic() - started_s)
    if profile.cpu_side.value is not None:
        store.put_record_once(key, profile)
    return profile
