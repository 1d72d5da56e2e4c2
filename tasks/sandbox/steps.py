"""Stage 4's effects: one trial is one task. A stored trial is never measured twice."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from prefect import task
from prefect.logging import get_run_logger

from infra.bench.engines import Bench, EngineFailed, close_bench, open_bench
from infra.bench.measure import SideFailed
from infra.bench.workload import WorkloadPlan
from infra.connect import open_store
from infra.engine.config import ServingConfig
from infra.errors import RatchetError
from infra.replay.code_hash import replay_code_hash
from infra.settings.sandbox import SandboxSettings
from infra.store import ObjectStore
from tasks.baseline.records import BaselineReport, Calibration, Samples
from tasks.baseline.rules import calibration_sentence, target_pct
from tasks.hypothesis.records import Hypothesis, Scalar
from tasks.sandbox import checks
from tasks.sandbox.comparison import THROUGHPUT, compare_runs
from tasks.sandbox.measuring import Measurement
from tasks.sandbox.records import CorrectnessReport, RunReadings, SandboxVerdict, TrialResult
from tasks.sandbox.rules import predicted_combination_pct, synergy_pct
from tasks.sandbox.runs import fetch_sample, loads_of, memory_limit_bytes
from tasks.sandbox.search import answered, combinations, worth_recording
from tasks.sandbox.trial import judged
from tasks.sandbox.verdict import sandbox_verdict
from tasks.sandbox.winner import pick_winner
from tasks.sandbox.workloads import refuse_endless
from tasks.shared.ledger import ledger_key
from tasks.shared.outcomes import worst_first
from tasks.shared.paired import budget_sd, planned_pairs
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria, LedgerEntry, Outcome

A_A_PAIRS = 8
"""Pairs of the A/A measurement: one of the looks, so that its interval is known."""


def _trial_key(campaign: str, kind: str, config_hash: str) -> str:
    return f"campaigns/{campaign}/trials/{kind}-{config_hash[:16]}.json"


@contextmanager
def sandbox_of(config: ServingConfig) -> Iterator[None]:
    """Engines outlive a trial, so that the baseline is not started for each; none outlives the campaign."""
    try:
        with open_bench(SandboxSettings()) as bench:
            bench.prepare(config)
        yield
    finally:
        close_bench()


@task(name="A/A: what the sandbox can tell", retries=1, retry_delay_seconds=5)
def calibrate(params: CampaignParams, criteria: Criteria, samples: Samples) -> Calibration:
    """The baseline measured against a twin of itself: how finely a pair repeats, and from it pairs and time."""
    store, settings, measuring = open_store(), SandboxSettings(), criteria.measuring
    log = get_run_logger()
    for sample in (samples.search, samples.held_out):
        refuse_endless(sample.duration_s, params.time_scale)
    with tempfile.TemporaryDirectory() as name, open_bench(settings) as bench:
        path, strata = fetch_sample(store, samples.search, Path(name), measuring)
        loads = loads_of(params, measuring, samples.search, strata, params.config)
        began_s = time.monotonic()
        sides = bench.pair(params.config, params.config)
        started_s = (time.monotonic() - began_s) / 2
        twins = Measurement(bench, sides, path, store, settings, criteria, partial(_tell, "A/A"))
        twins.start()
        pairs = twins.run(loads[0], A_A_PAIRS, lambda _: False)
        bench.stop_candidate()
        design = bench.design
    compared = {c.metric: c for c in compare_runs(twins.readings, criteria, design)}
    found = compared[THROUGHPUT].estimate
    planned = None
    if found is not None and found.sd is not None:
        planned = planned_pairs(budget_sd(found), target_pct(criteria), measuring.smallest_gain_pct)
    pair_s = twins.spans_s / pairs
    once_s = 2 * samples.search.duration_s * params.time_scale
    trials = measuring.max_candidates + measuring.max_combinations + 1
    trial_s = started_s + pair_s * (planned or measuring.most_pairs) * (1 + len(measuring.workloads)) + 3 * once_s
    sentence = "" if found is None else calibration_sentence(found, design, planned, pair_s, trials * trial_s)
    log.info("%s", sentence)
    return Calibration(
        design=design, found=found, planned_pairs=planned, pair_s=pair_s, campaign_s=trials * trial_s, sentence=sentence
    )


@task(name="trial", task_run_name="trial {hypothesis.knob}={hypothesis.value_to}", retries=0)
def measure_single(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    hypothesis: Hypothesis,
) -> TrialResult:
    """One hypothesis alone."""
    return _measure(
        params,
        criteria,
        baseline,
        kind="single",
        changes={hypothesis.knob: hypothesis.value_to},
        ids=(hypothesis.id,),
        check_outputs=hypothesis.may_change_outputs,
    )


@task(name="combination", retries=0)
def measure_combination(
    params: CampaignParams, criteria: Criteria, baseline: BaselineReport, members: tuple[TrialResult, ...]
) -> TrialResult:
    """Members together, measured and never added up (spec V7)."""
    changes: dict[str, Scalar] = {}
    for member in members:
        changes.update(member.changes)
    gains = [c.change_pct for m in members if (c := m.comparison("throughput_per_gpu")) and c.change_pct is not None]
    return _measure(
        params,
        criteria,
        baseline,
        kind="combination",
        changes=changes,
        ids=tuple(i for m in members for i in m.hypothesis_ids),
        check_outputs=False,
        predicted=predicted_combination_pct(gains),
    )


@task(name="held-out measurement", retries=0)
def measure_held_out(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    winner: TrialResult,
) -> TrialResult:
    """The winner once more, from a clean start, on conversations that the search never saw (spec V12)."""
    return _measure(
        params,
        criteria,
        baseline,
        kind="held_out",
        changes=winner.changes,
        ids=winner.hypothesis_ids,
        check_outputs=True,
        predicted=winner.predicted_change_pct,
    )


def _how_it_died(bench: Bench, failure: RatchetError) -> tuple[str, str]:
    """(outcome, what it said) of a candidate that failed; any other fault is raised again.

    A candidate that died under load shows itself first as a server that does not answer (case EN6). One that lives
    and whose runs do not end costs its trial, not the campaign: what was not measured is not compared (spec V8).
    """
    if isinstance(failure, EngineFailed):
        return failure.outcome, failure.detail
    died = bench.candidate_death()
    if died is not None:
        return died
    if isinstance(failure, SideFailed) and failure.side == "candidate":
        return "silent", str(failure)
    raise failure


def _measure_loads(measured: Measurement, loads: Sequence[WorkloadPlan], criteria: Criteria, proves: bool) -> None:
    """The saturating load, and the others for what is worth it."""
    measured.start()
    for plan in loads:
        if plan.workload == "saturating" or worth_recording(measured.readings, criteria):
            until = partial(answered, plan.workload, criteria=criteria, proves=proves)
            measured.run(plan, criteria.measuring.most_pairs, until)


def _changed(config: ServingConfig, changes: dict[str, Scalar]) -> ServingConfig:
    for knob, value in changes.items():
        config = config.with_arg(knob, value)
    return config


def _tell(what: str, text: str) -> None:
    get_run_logger().info("%s: %s", what, text)


def _measure(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    *,
    kind: str,
    changes: dict[str, Scalar],
    ids: tuple[str, ...],
    check_outputs: bool,
    predicted: float | None = None,
) -> TrialResult:
    store, settings = open_store(), SandboxSettings()
    config = _changed(baseline.config, changes)
    config_hash = config.config_hash()
    key = _trial_key(params.campaign, kind, config_hash)
    if store.exists(key):
        return store.get_record(key, TrialResult)
    if baseline.samples is None:
        raise ValueError("the baseline holds no samples")
    held_out = kind == "held_out"
    proves = kind != "single"
    ref = baseline.samples.held_out if held_out else baseline.samples.search
    started_s = time.monotonic()
    log = get_run_logger()
    what = f"{kind.replace('_', '-')} {checks.changes_text(changes)}"
    log.info("%s", what)
    shape = f"{settings.accelerator} x{settings.accelerators}"
    base = {
        "trial_id": f"{kind}-{config_hash[:8]}",
        "campaign": params.campaign,
        "target": params.target,
        "hypothesis_ids": ids,
        "changes": changes,
        "config": config,
        "config_hash": config_hash,
        "baseline_hash": baseline.config_hash,
        "kind": kind,
        "predicted_change_pct": predicted,
        "sample_hash": ref.sample_hash,
        "held_out": held_out,
        "replay_hash": replay_code_hash(),
    }
    outcome, detail = "measured", ""
    readings: list[RunReadings] = []
    measured: Measurement | None = None
    correctness: CorrectnessReport | None = None
    with tempfile.TemporaryDirectory() as name, open_bench(settings) as bench:
        path, strata = fetch_sample(store, ref, Path(name), criteria.measuring)
        loads = loads_of(params, criteria.measuring, ref, strata, baseline.config, config)
        design = bench.design
        try:
            sides = bench.pair(baseline.config, config, fresh=held_out)
            measured = Measurement(bench, sides, path, store, settings, criteria, partial(_tell, what))
            readings = measured.readings
            _measure_loads(measured, loads, criteria, proves)
            bench.still_alive()
            if check_outputs and (proves or worth_recording(readings, criteria)):
                correctness = checks.compare_outputs(bench, sides, params.seed)
                log.info("outputs: %s", correctness.judgement.reasons[0].text)
            bench.still_alive()
        except RatchetError as failure:
            outcome, detail = _how_it_died(bench, failure)
            log.warning("engine: %s %s", outcome, detail)
        finally:
            log_key = bench.keep_log(store, params.campaign)
            bench.stop_candidate()
    peaks = [v for r in readings if r.side == "candidate" and (v := r.metrics["peak_memory"].value) is not None]
    result = judged(
        base,
        criteria,
        readings,
        design=design,
        outcome=outcome,
        detail=detail,
        log_key=log_key,
        correctness=correctness,
        shapes_match=shape == params.production_shape,
        memory=max(peaks, default=None),
        memory_limit_bytes=memory_limit_bytes(settings),
        duration_s=time.monotonic() - started_s,
        measured_s=0.0 if measured is None else measured.spans_s,
    )
    store.put_record_once(key, result)
    _remember(store, result, key)
    gain = result.comparison(THROUGHPUT)
    ratio = f", throughput {gain.estimate.text()}, {design}" if gain is not None and gain.estimate else ""
    log.info("%s: %s%s", what, result.outcome_class.value, ratio)
    return result


def _remember(store: ObjectStore, trial: TrialResult, key: str) -> None:
    throughput = trial.comparison("throughput_per_gpu")
    single = trial.kind == "single"
    knob = next(iter(trial.changes)) if single else ""
    bad = [r.text for r in worst_first(trial.judgement.reasons) if r.outcome is not Outcome.PASS]
    entry = LedgerEntry(
        entry_id=f"{trial.campaign[:20]}-{trial.trial_id}",
        at_s=time.time(),
        target=trial.target,
        campaign=trial.campaign,
        kind="trial",
        knob=knob,
        value=trial.changes[knob] if single else None,
        changes=trial.changes,
        outcome_class=trial.outcome_class.value,
        reason="; ".join(bad[:3]) or "every guard inside its limit",
        throughput_change_pct=throughput.change_pct if throughput else None,
        record_key=key,
        engine_build=trial.config.engine_build,
        baseline_hash=trial.baseline_hash,
        workload="recorded+saturating",
    )
    store.put_record_once(ledger_key(entry), entry)


def combinations_to_measure(criteria: Criteria, trials: Sequence[TrialResult]) -> list[tuple[TrialResult, ...]]:
    """Which members to measure together: every effective one, then those with each one left out."""
    return combinations([t for t in trials if t.kind == "single"], criteria.measuring.max_combinations)


def winner(trials: Sequence[TrialResult], criteria: Criteria) -> TrialResult | None:
    """The trial that goes to the held-out measurement."""
    return pick_winner(trials, criteria)


def verdict(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    trials: Sequence[TrialResult],
    winner: TrialResult | None,
    held_out: TrialResult | None,
    pinned: bool,
) -> SandboxVerdict:
    """Stage 4's last word."""
    settings = SandboxSettings()
    shape = f"{settings.accelerator} x{settings.accelerators}"
    said = sandbox_verdict(
        criteria=criteria,
        trials=trials,
        winner=winner,
        held_out=held_out,
        pinned=pinned,
        shapes_match=shape == params.production_shape,
    )
    combined = winner.comparison(THROUGHPUT) if winner else None
    return SandboxVerdict(
        campaign=params.campaign,
        target=params.target,
        criteria_hash=baseline.criteria_hash,
        pinned=pinned,
        judgement=said,
        winner=winner,
        held_out=held_out,
        trials=tuple(trials),
        synergy_pct=synergy_pct(combined.change_pct, winner.predicted_change_pct) if winner and combined else None,
    )


def stored_verdict(campaign: str) -> SandboxVerdict | None:
    """The finished verdict of a campaign that is resumed."""
    store, key = open_store(), f"campaigns/{campaign}/verdict.json"
    return store.get_record(key, SandboxVerdict) if store.exists(key) else None


def store_verdict(said: SandboxVerdict) -> None:
    """Write the verdict once."""
    open_store().put_record_once(f"campaigns/{said.campaign}/verdict.json", said)
