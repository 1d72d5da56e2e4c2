"""A trial's record from its readings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.engine.config import ServingConfig
from tasks.baseline.records import BaselineReport
from tasks.hypothesis.records import Scalar
from tasks.sandbox.comparison import comparable_cache, compare_runs, unstable
from tasks.sandbox.judging import classify, judge_single, judge_trial, objective
from tasks.sandbox.records import CorrectnessReport, RunReadings, TrialResult
from tasks.sandbox.workloads import load_specific, memory_at_peak
from tasks.shared.outcomes import with_reasons
from tasks.shared.records import Criteria, Judgement, Outcome, Reason
from tasks.shared.statistics import ArrivalBlocks


def judged(
    base: dict[str, object],
    criteria: Criteria,
    baseline: BaselineReport,
    readings: Sequence[RunReadings],
    *,
    blocks: Mapping[str, ArrivalBlocks],
    outcome: str,
    detail: str,
    log_key: str,
    correctness: CorrectnessReport | None,
    shapes_match: bool,
    memory: float | None,
    memory_limit_bytes: float | None,
    duration_s: float,
    seed: int,
) -> TrialResult:
    """The trial's record from what was measured; the rules decide.

    Args:
        base: the fields that say what was tried: campaign, target, changes, configuration, hashes, kind.
        readings: of every run, in the order of measuring.
        blocks: values by arrival block and metric, for the intervals.
        outcome: `measured`, or how the engine failed, with its last words in `detail`.
        memory: peak resident memory of the candidate, bytes.
        memory_limit_bytes: what it may take, for its rank; None where that is not known.
    """
    kind = str(base["kind"])
    changes: dict[str, Scalar] = base["changes"]  # type: ignore[assignment]
    repeats = 1 + max((r.repeat for r in readings), default=0)
    # A pair that was ended early is judged by the runs that it had: it can be refused by them, never adopted.
    measuring = criteria.measuring.model_copy(
        update={
            "runs_per_side": min(repeats, criteria.measuring.runs_per_side),
            "recorded_runs_per_side": min(repeats, criteria.measuring.recorded_runs_per_side),
        }
    )
    rules = criteria.model_copy(update={"measuring": measuring})
    floors = {f.metric: f.floor_pct for f in baseline.noise_floors}
    if outcome != "measured" or not readings:
        klass = classify(engine_outcome=outcome, comparisons=(), criteria=rules, kind=kind)  # type: ignore[arg-type]
        verdict = Judgement(
            outcome=Outcome.FAIL,
            reasons=(Reason(rule="engine", outcome=Outcome.FAIL, text=f"the engine was {outcome}: {detail}"),),
        )
        return TrialResult.model_validate(
            {
                **base,
                "outcome_class": klass,
                "engine_outcome": outcome,
                "engine_detail": detail,
                "judgement": verdict,
                "log_key": log_key,
                "runs": tuple(readings),
                "duration_s": duration_s,
            }
        )
    comparisons = compare_runs(readings, rules, floors, blocks=blocks, seed=seed)
    cache = comparable_cache(readings, changes)
    shaky = unstable(readings, rules)
    config: ServingConfig = base["config"]  # type: ignore[assignment]
    loads = (*load_specific(comparisons, criteria.measuring.workloads), *memory_at_peak(readings, config))
    klass = classify(
        engine_outcome="measured",
        comparisons=comparisons,
        criteria=rules,
        kind=kind,  # type: ignore[arg-type]
        unstable_reasons=shaky,
        cache=cache,
        more_guards=loads,
        correctness=correctness,
        shapes_match=shapes_match,
    )
    judge = judge_single if kind == "single" else judge_trial
    verdict = judge(comparisons, rules)
    extra = [Reason(rule="stability", outcome=Outcome.INCONCLUSIVE, text=text) for text in shaky]
    extra += loads
    if cache.outcome is not Outcome.PASS:
        extra += [r for r in cache.reasons if r.outcome is not Outcome.PASS]
    if repeats < criteria.measuring.runs_per_side:
        if verdict.outcome is Outcome.PASS:
            extra.append(
                Reason(
                    rule="repeats",
                    outcome=Outcome.INCONCLUSIVE,
                    text=f"{repeats} of {criteria.measuring.runs_per_side} repeats were made",
                )
            )
        else:
            extra.append(
                Reason(
                    rule="repeats",
                    outcome=verdict.outcome,
                    text=f"decided after {repeats} of {criteria.measuring.runs_per_side} repeats: it could "
                    "not be adopted any more",
                )
            )
    if correctness is not None and correctness.judgement.outcome is not Outcome.PASS:
        extra += list(correctness.judgement.reasons)
    verdict = with_reasons(verdict, extra)
    return TrialResult.model_validate(
        {
            **base,
            "outcome_class": klass,
            "runs": tuple(readings),
            "comparisons": comparisons,
            "judgement": verdict,
            "correctness": correctness,
            "log_key": log_key,
            "peak_memory_bytes": memory,
            "duration_s": duration_s,
            "objective": objective(comparisons, criteria.weights, memory_limit_bytes=memory_limit_bytes),
        }
    )
