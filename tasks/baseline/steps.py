"""Stage 1's effects: production's readings, the traffic samples, the stored report."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from prefect import task

from infra.connect import open_store
from infra.quality.runner import run_gate
from infra.quality.suite import GateResult
from infra.sampling.draw import draw_sample
from infra.sampling.manifest import SampleManifest
from infra.sampling.objects import objects_from_s3
from infra.sampling.sample import Sample, parse_sample, save_sample, strata_from_bounds
from tasks.baseline.gates import baseline_rows, baseline_suite
from tasks.baseline.production import production_metrics
from tasks.baseline.records import BaselineReport, Calibration, SampleRef, Samples
from tasks.baseline.rules import baseline_report, drift, judge_calibration
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria, Outcome
from tasks.shared.stops import PreconditionFailed
from tasks.shared.traffic_gate import sample_rows, traffic_suite

MAX_DRIFT_PCT = 7.0
"""What a week may change at least; a metric whose own spread is larger may change by that (spec B3)."""

SANDBOX_ONLY = frozenset({"coverage", "peak_memory", "preemptions", "prefix_hit_rate", "cost_per_million_tokens"})


def _key(campaign: str) -> str:
    return f"campaigns/{campaign}/baseline.json"


def stored_baseline(campaign: str) -> BaselineReport | None:
    """The finished baseline of a campaign that is resumed."""
    store = open_store()
    return store.get_record(_key(campaign), BaselineReport) if store.exists(_key(campaign)) else None


@task(name="read production from Prometheus", retries=2, retry_delay_seconds=2)
def read_production(params: CampaignParams, criteria: Criteria, criteria_hash: str) -> BaselineReport:
    """Every production metric over the window; what could not be read is unknown and says why."""
    return baseline_report(
        target=params.target,
        campaign=params.campaign,
        window=params.window,
        config=params.config,
        criteria_hash=criteria_hash,
        metrics=production_metrics(params.role, params.window, criteria, params.accelerators),
        price_per_accelerator_hour=criteria.price_per_accelerator_hour,
        accelerators=params.accelerators,
    )


def _describe(sample: Sample, manifest: SampleManifest, key: str, manifest_key: str) -> SampleRef:
    longest = sample.strata[-1].name
    tokens = sum(e.prompt_tokens for e in sample.entries)
    long = [e for e in sample.entries if e.stratum == longest]
    return SampleRef(
        key=key,
        manifest_key=manifest_key,
        sample_hash=sample.content_hash(),
        requests=len(sample.entries),
        duration_s=sample.duration_s,
        held_out=manifest.held_out,
        prefix_reuse=manifest.prefix_reuse_sample,
        strata=dict(Counter(e.stratum for e in sample.entries)),
        long_share=len(long) / max(1, len(sample.entries)),
        long_token_share=sum(e.prompt_tokens for e in long) / max(1, tokens),
        prompt_tokens_avg=tokens / max(1, len(sample.entries)),
        notes=manifest.notes,
    )


@task(name="draw traffic samples", retries=1, retry_delay_seconds=2)
def draw_samples(params: CampaignParams, criteria: Criteria) -> Samples:
    """The search's sample and the held-out one: other conversations of the same window.

    Raises:
        EmptyPool: the prefix or the window holds no request; the message names both.
    """
    store = open_store()
    strata = strata_from_bounds(criteria.measuring.short_below_tokens, criteria.measuring.medium_below_tokens)
    refs = []
    for held_out in (False, True):
        found = objects_from_s3(lambda prefix: (i.key for i in store.list(prefix)), store.get, params.traffic_prefix)
        own = params.held_out_window if held_out else params.sample_window
        window = own or params.window
        sample, manifest = draw_sample(
            found,
            seed=params.seed,
            n=None if own else criteria.measuring.sample_requests,
            share=1.0 if own else None,
            strata=strata,
            window=(window.start_s, window.end_s),
            held_out=held_out and own is None,
            source=f"s3 {params.traffic_prefix}",
        )
        if held_out and own is not None:
            manifest = manifest.model_copy(update={"held_out": True})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sample.parquet"
            save_sample(sample, path)
            key = store.put_content("samples", path.read_bytes(), ".parquet")
        manifest_key = store.put_content("samples", manifest.model_dump_json(indent=1).encode(), ".manifest.json")
        refs.append(_describe(sample, manifest, key, manifest_key))
    return Samples(search=refs[0], held_out=refs[1])


@task(name="gate: traffic sample")
def check_sample(sample_of: SampleRef, criteria: Criteria) -> GateResult:
    """The data-quality gate before anything is built on a sample; the search's holds every stratum too."""
    m = criteria.measuring
    strata = strata_from_bounds(m.short_below_tokens, m.medium_below_tokens)
    sample = parse_sample(open_store().get(sample_of.key), sample_of.key, strata)
    rows = sample_rows(
        (e.model_dump() for e in sample.entries), short_below=m.short_below_tokens, medium_below=m.medium_below_tokens
    )
    wanted = {} if sample_of.held_out else {s.name: m.min_requests_per_stratum for s in strata}
    suite = traffic_suite(min_requests=8, min_per_stratum=wanted)
    name = f"held-out {suite.name}" if sample_of.held_out else suite.name
    return run_gate(suite.model_copy(update={"name": name}), rows)


def stop_on_unrest(report: BaselineReport, criteria: Criteria) -> None:
    """End the campaign when production was not one thing over the window, or is not what it was (spec B1, P1).

    Raises:
        PreconditionFailed: an engine restarted in the window; or, where the criteria compare with the week before, a
            primary metric or P99 moved by more than its own spread or cannot be compared.
    """
    restarts = report.metric("oom_count")
    if restarts.value:
        raise PreconditionFailed(
            f"the baseline is not stable: engines restarted {restarts.value:g} times in the window",
            remedy="Choose a window without deploys and crashes",
        )
    if not criteria.windows.compare_with_week_before:
        return
    required = dict.fromkeys([*(p.name for p in criteria.primary), "p99_latency"])
    found = drift(report.metrics, required=required, max_drift_pct=MAX_DRIFT_PCT)
    if found.outcome is not Outcome.PASS:
        bad = "; ".join(r.text for r in found.reasons if r.outcome is not Outcome.PASS)
        raise PreconditionFailed(
            f"the baseline is not stable: {bad}",
            remedy="Find out what changed, and measure when a week lies before it",
        )


def stop_unless_told(sandbox: Calibration, criteria: Criteria) -> None:
    """End the campaign when the sandbox cannot tell what the criteria ask for (spec B4).

    Raises:
        PreconditionFailed: two engines of one configuration differ, or the pairs that the target needs are not in the
            budget; with the figures.
    """
    said = judge_calibration(sandbox.found, sandbox.planned_pairs, criteria.measuring)
    if said.outcome is not Outcome.PASS:
        bad = "; ".join(r.text for r in said.reasons if r.outcome is not Outcome.PASS)
        raise PreconditionFailed(
            f"this machine cannot tell what the criteria ask for: {bad} ({sandbox.sentence})",
            remedy="Give the engines slots of their own (RATCHET_SANDBOX_SLOTS) on a quieter machine, or ask in the "
            "criteria for longer spans, more pairs or a larger gain",
        )


def with_calibration(draft: BaselineReport, samples: Samples, sandbox: Calibration) -> BaselineReport:
    """The report with what the sandbox can tell, and its samples."""
    return draft.model_copy(update={"calibration": sandbox, "samples": samples, "sample_key": samples.search.key})


@task(name="gate: baseline")
def check_baseline(report: BaselineReport, criteria: Criteria) -> GateResult:
    """The data-quality gate before stage 2: every metric that the criteria name is known."""
    named = {p.name for p in criteria.primary} | {g.name for g in criteria.guards if g.required}
    required = sorted(named - SANDBOX_ONLY)
    gate = run_gate(
        baseline_suite(required, min_window_s=criteria.windows.baseline_s * 0.9), baseline_rows(report, required)
    )
    unknown = [f"{name}: {report.metric(name).text()}" for name in required if report.metric(name).value is None]
    return gate if gate.passed else gate.model_copy(update={"failures": (*unknown, *gate.failures)})


def store_baseline(report: BaselineReport) -> None:
    """Write the report once."""
    open_store().put_record_once(_key(report.campaign), report)
