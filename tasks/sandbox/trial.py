"""A trial's record from its readings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from infra.engine.config import ServingConfig
from tasks.hypothesis.records import Scalar
from tasks.sandbox.comparison import comparable_cache, compare_runs
from tasks.sandbox.judging import classify, judge_single, judge_trial, objective
from tasks.sandbox.records import CorrectnessReport, RunReadings, TrialResult
from tasks.sandbox.workloads import load_specific, memory_at_peak
from tasks.shared.outcomes import with_reasons
from tasks.shared.records import Criteria, Judgement, Outcome, Reason


def judged(
    base: dict[str, object],
    criteria: Criteria,
    readings: Sequence[RunReadings],
    *,
    design: str,
    outcome: str,
    detail: str,
    log_key: str,
    correctness: CorrectnessReport | None,
    shapes_match: bool,
    memory: float | None,
    memory_limit_bytes: float | None,
    duration_s: float,
    measured_s: float,
) -> TrialResult:
    """The trial's record from what was measured; the rules decide.

    Args:
        base: the fields that say what was tried: campaign, target, changes, configuration, hashes, kind.
        readings: of every span, in the order of measuring.
        design: how both sides shared the machine.
        outcome: `measured`, or how the engine failed, with its last words in `detail`.
        memory: peak resident memory of the candidate, bytes.
        memory_limit_bytes: what it may take, for its rank; None where that is not known.
    """
    kind = str(base["kind"])
    changes: dict[str, Scalar] = base["changes"]  # type: ignore[assignment]
    if outcome != "measured" or not readings:
        klass = classify(engine_outcome=outcome, comparisons=(), criteria=criteria, kind=kind)  # type: ignore[arg-type]
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
                "design": design,
                "runs": tuple(readings),
                "duration_s": duration_s,
                "measured_s": measured_s,
            }
        )
    comparisons = compare_runs(readings, criteria, design)
    cache = comparable_cache(readings, changes)
    config: ServingConfig = base["config"]  # type: ignore[assignment]
    loads = (*load_specific(comparisons, criteria.measuring), *memory_at_peak(readings, config))
    klass = classify(
        engine_outcome="measured",
        comparisons=comparisons,
        criteria=criteria,
        kind=kind,  # type: ignore[arg-type]
        cache=cache,
        more_guards=loads,
        correctness=correctness,
        shapes_match=shapes_match,
    )
    verdict = (judge_single if kind == "single" else judge_trial)(comparisons, criteria)
    extra: list[Reason] = [*loads]
    if cache.outcome is not Outcome.PASS:
        extra += [r for r in cache.reasons if r.outcome is not Outcome.PASS]
    extra += [Reason(rule="void", outcome=Outcome.INCONCLUSIVE, text=text) for text in _voids(readings)]
    if correctness is not None and correctness.judgement.outcome is not Outcome.PASS:
        extra += list(correctness.judgement.reasons)
    verdict = with_reasons(verdict, extra)
    return TrialResult.model_validate(
        {
            **base,
            "outcome_class": klass,
            "design": design,
            "runs": tuple(readings),
            "comparisons": comparisons,
            "judgement": verdict,
            "correctness": correctness,
            "log_key": log_key,
            "peak_memory_bytes": memory,
            "duration_s": duration_s,
            "measured_s": measured_s,
            "objective": objective(comparisons, criteria.weights, memory_limit_bytes=memory_limit_bytes),
        }
    )


def _voids(readings: Sequence[RunReadings]) -> list[str]:
    """Why spans count for nothing, where so many do that fewer than half are left."""
    void = [r for r in readings if not r.valid]
    if 2 * len(void) <= len(readings):
        return []
    causes = "; ".join(sorted({reason for r in void for reason in r.invalid_reasons}))
    return [f"{len(void)} of {len(readings)} spans are void: {causes}"]
