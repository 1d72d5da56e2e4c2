"""Stage 4's effects: one trial is one task. A stored trial is never measured twice."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect import task
from prefect.logging import get_run_logger

from infra.bench.engines import Bench, EngineFailed, close_bench, open_bench
from infra.bench.measure import MeasuredRun, SideFailed, measure_pair, measure_run
from infra.connect import open_store
from infra.engine.config import ServingConfig
from infra.errors import RatchetError
from infra.replay.code_hash import replay_code_hash
from infra.settings.sandbox import SandboxSettings
from infra.store import ObjectStore
from tasks.baseline.records import BaselineReport, Calibration, Samples
from tasks.baseline.rules import noise_floors
from tasks.hypothesis.records import Hypothesis, Scalar
from tasks.sandbox import checks
from tasks.sandbox.records import CorrectnessReport, RunReadings, SandboxVerdict, TrialResult
from tasks.sandbox.rules import predicted_combination_pct
from tasks.sandbox.runs import fetch_sample, keep, loads_of, memory_limit_bytes, undisturbed, void
from tasks.sandbox.search import combinations, decided_early, recorded_blocks
from tasks.sandbox.trial import judged
from tasks.sandbox.verdict import sandbox_verdict
from tasks.sandbox.winner import pick_winner
from tasks.sandbox.workloads import passes_needed, refuse_endless
from tasks.shared.ledger import ledger_key
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria, LedgerEntry, Outcome


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


@task(name="A/A: the sandbox's noise floor", retries=1, retry_delay_seconds=5)
def calibrate(params: CampaignParams, criteria: Criteria, samples: Samples) -> Calibration:
    """How long a run in closed loop must be, and the baseline measured beside a twin of itself; nothing smaller than
    what differs there is called a difference."""
    store, settings, measuring = open_store(), SandboxSettings(), criteria.measuring
    log = get_run_logger()
    for sample in (samples.search, samples.held_out):
        refuse_endless(sample.duration_s, params.time_scale)
    with tempfile.TemporaryDirectory() as name, open_bench(settings) as bench:
        folder = Path(name)
        path, strata = fetch_sample(store, samples.search, folder, measuring)
        baseline, twin = bench.baseline_and_twin(params.config)
        passes = 1
        if measuring.min_closed_run_s:
            once = loads_of(params, measuring, samples.search, strata, params.config)
            saturating = next(plan for plan in once if plan.workload == "saturating")
            first = measure_run(
                baseline, "baseline", saturating, 0, path, folder / "once", client_cores=settings.client_cores
            )
            passes = passes_needed(first.result.summary.duration_s, measuring.min_closed_run_s)
            log.info("%s; runs in closed loop replay the sample %d times", checks.run_line(first), passes)
        loads = loads_of(
            params,
            measuring,
            samples.search,
            strata,
            params.config,
            passes=passes,
            recorded_runs=measuring.runs_per_side,
        )
        readings = [
            keep(store, settings, run, bench.peak_memory(run.side))
            for run in measure_pair(
                baseline,
                twin,
                loads,
                path,
                folder,
                client_cores=settings.client_cores,
                void=void,
                on_run=lambda r: log.info("A/A %s", checks.run_line(r)),
            )
        ]
        bench.stop_candidate()
    a, b = checks.by_repeat(readings, "baseline"), checks.by_repeat(readings, "candidate")
    return Calibration(noise_floors=noise_floors(a, b), passes=passes)


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
    config = baseline.config
    for knob, value in changes.items():
        config = config.with_arg(knob, value)
    config_hash = config.config_hash()
    key = _trial_key(params.campaign, kind, config_hash)
    if store.exists(key):
        return store.get_record(key, TrialResult)
    if baseline.samples is None:
        raise ValueError("the baseline holds no samples")
    held_out = kind == "held_out"
    proves = kind != "single"  # leaving one member out proves the others, and only with every repeat
    primaries = [metric.name for metric in criteria.primary]
    ref = baseline.samples.held_out if held_out else baseline.samples.search
    started_s = time.monotonic()
    log = get_run_logger()
    log.info("%s %s", kind, checks.changes_text(changes))
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
    outcome, detail, log_key = "measured", "", ""
    readings: list[RunReadings] = []
    runs: list[MeasuredRun] = []
    correctness: CorrectnessReport | None = None
    memory: float | None = None
    with tempfile.TemporaryDirectory() as name, open_bench(settings) as bench:
        folder = Path(name)
        path, strata = fetch_sample(store, ref, folder, criteria.measuring)
        loads = loads_of(params, criteria.measuring, ref, strata, baseline.config, config, passes=baseline.passes)
        try:
            sides = bench.pair(baseline.config, config, fresh=held_out)
            floor = baseline.floor_pct("throughput_per_gpu")
            for run in measure_pair(
                sides.baseline,
                sides.candidate,
                loads,
                path,
                folder,
                client_cores=settings.client_cores,
                void=void,
                stop_after=None
                if proves
                else lambda done: decided_early(undisturbed(done), floor, primaries=primaries),
                on_run=lambda r: log.info("%s", checks.run_line(r)),
            ):
                runs.append(run)
                peak = bench.peak_memory(run.side)
                if run.side == "candidate" and peak is not None:
                    memory = max(peak, memory or 0.0)
                readings.append(keep(store, settings, run, peak))
            bench.still_alive()
            if check_outputs and (proves or not decided_early(undisturbed(runs), floor, primaries=primaries)):
                correctness = checks.compare_outputs(bench, sides, params.seed)
                log.info("outputs: %s", correctness.judgement.reasons[0].text)
            bench.still_alive()
        except RatchetError as failure:
            outcome, detail = _how_it_died(bench, failure)
            log.warning("engine: %s %s", outcome, detail)
        finally:
            log_key = bench.keep_log(store, params.campaign)
            bench.stop_candidate()
    result = judged(
        base,
        criteria,
        baseline,
        readings,
        blocks=recorded_blocks(undisturbed(runs)),
        outcome=outcome,
        detail=detail,
        log_key=log_key,
        correctness=correctness,
        shapes_match=shape == params.production_shape,
        memory=memory,
        memory_limit_bytes=memory_limit_bytes(settings),
        duration_s=time.monotonic() - started_s,
        seed=params.seed,
    )
    store.put_record_once(key, result)
    _remember(store, result, key)
    log.info("%s %s: %s", kind, checks.changes_text(changes), result.outcome_class.value)
    return result


def _remember(store: ObjectStore, trial: TrialResult, key: str) -> None:
    throughput = trial.comparison("throughput_per_gpu")
    single = trial.kind == "single"
    knob = next(iter(trial.changes)) if single else ""
    bad = [r.text for r in trial.judgement.reasons if r.outcome is not Outcome.PASS]
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


def winner(trials: Sequence[TrialResult], baseline: BaselineReport, criteria: Criteria) -> TrialResult | None:
    """The trial that goes to the held-out measurement."""
    return pick_winner(trials, criteria, floor_pct=baseline.floor_pct("throughput_per_gpu"))


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
        floor_pct=baseline.floor_pct("throughput_per_gpu"),
    )
    combined = winner.comparison("throughput_per_gpu") if winner else None
    synergy = None
    if winner and winner.predicted_change_pct is not None and combined and combined.change_pct is not None:
        synergy = combined.change_pct - winner.predicted_change_pct
    return SandboxVerdict(
        campaign=params.campaign,
        target=params.target,
        criteria_hash=baseline.criteria_hash,
        pinned=pinned,
        judgement=said,
        winner=winner,
        held_out=held_out,
        trials=tuple(trials),
        synergy_pct=synergy,
    )


def stored_verdict(campaign: str) -> SandboxVerdict | None:
    """The finished verdict of a campaign that is resumed."""
    store, key = open_store(), f"campaigns/{campaign}/verdict.json"
    return store.get_record(key, SandboxVerdict) if store.exists(key) else None


def store_verdict(said: SandboxVerdict) -> None:
    """Write the verdict once."""
    open_store().put_record_once(f"campaigns/{said.campaign}/verdict.json", said)
