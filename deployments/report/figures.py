"""The campaign's figures for a program (`--json`) and for the head of the report. Pure."""

from __future__ import annotations

from typing import Any

from deployments.report.story import Story
from tasks.sandbox.records import MetricComparison, TrialResult
from tasks.shared.outcomes import worst_first
from tasks.shared.records import Outcome, Reading

TEMPTING_PCT = 5.0
"""A change that gains more than this on latency or throughput looks tempting."""


def _number(reading: Reading | None) -> float | None:
    return None if reading is None else reading.value


def _throughput(trial: TrialResult | None) -> MetricComparison | None:
    return trial.comparison("throughput_per_gpu") if trial else None


def _throughput_pct(trial: TrialResult | None) -> float | None:
    comparison = _throughput(trial)
    return comparison.change_pct if comparison else None


def hypothesis_rows(story: Story) -> list[dict[str, Any]]:
    """One row per hypothesis: what was proposed and what became of it."""
    by_id = {t.hypothesis_ids[0]: t for t in story.trials if t.kind == "single" and t.hypothesis_ids}
    rows = []
    for h in story.hypotheses.hypotheses if story.hypotheses else ():
        trial = by_id.get(h.id)
        compared = _throughput(trial)
        rows.append(
            {
                "id": h.id,
                "source": h.source,
                "knob": h.knob,
                "from": h.value_from,
                "to": h.value_to,
                "sentence": h.sentence(),
                "class": trial.outcome_class.value if trial else "not run",
                "throughput_change_pct": compared.change_pct if compared else None,
                "interval_pct": [compared.low_pct, compared.high_pct] if compared else [None, None],
                "pairs": getattr(compared, "pairs", 0),
                "outcome": trial.judgement.outcome.value if trial else Outcome.NO_DATA.value,
                "why": [r.text for r in worst_first(trial.judgement.reasons)]
                if trial
                else ["the campaign ended before it was measured"],
            }
        )
    return rows


def refused_by_guard(story: Story) -> list[dict[str, Any]]:
    """Single changes that looked tempting (survivors faster, or more tokens a second) and broke a guard."""
    found = []
    guards = {g.name for g in story.pin.criteria.guards}
    for trial in story.trials:
        if trial.kind != "single" or trial.judgement.outcome is not Outcome.FAIL:
            continue
        broken = [r.text for r in trial.judgement.reasons if r.outcome is Outcome.FAIL and r.rule in guards]
        tempting = [
            f"{c.metric} {c.change_pct:+.1f} %"
            for c in trial.comparisons
            if c.change_pct is not None
            and (
                (c.metric.endswith("latency") and c.change_pct < -TEMPTING_PCT)
                or (c.metric == "throughput_per_gpu" and c.change_pct > TEMPTING_PCT)
            )
        ]
        if broken:
            found.append(
                {
                    "changes": trial.changes,
                    "class": trial.outcome_class.value,
                    "tempting": tempting,
                    "broken_guards": broken,
                }
            )
    return found


def measuring_share_pct(story: Story) -> float | None:
    """Of the campaign's time, the part in which two engines were measured against each other, %."""
    stages = next((e.stage_seconds for e in story.ledger if e.kind == "campaign"), {})
    if not stages or story.baseline is None:
        return None
    a_a = story.baseline.calibration
    trials = [*story.trials, *([story.verdict.held_out] if story.verdict and story.verdict.held_out else [])]
    distinct = {(t.kind, t.config_hash): t.measured_s for t in trials}
    measured_s = sum(distinct.values()) + a_a.pair_s * (a_a.found.pairs if a_a.found else 0)
    return 100 * measured_s / max(sum(stages.values()), 1e-9)


def figures(story: Story, *, seed: int | None = None, drill_ms: float | None = None) -> dict[str, Any]:
    """Everything that the demo prints, as JSON values; what is unknown is null."""
    canary = story.canary
    before = canary.production_before if canary else {}
    after = canary.production_after if canary else {}
    if not before and story.baseline:
        before = {m.name: m.reading for m in story.baseline.metrics}
    metrics = ("throughput_per_gpu", "p99_latency", "ttft_p99", "tpot_p99", "error_rate")
    return {
        "campaign": story.campaign,
        "seed": seed,
        "criteria_hash": story.pin.criteria_hash,
        "profile": story.pin.criteria.profile,
        "gives_up": list(story.pin.criteria.gives_up),
        "production": {
            "before": {m: _number(before.get(m)) for m in metrics},
            "after": {m: _number(after.get(m)) for m in metrics},
            "throughput_change_pct": canary.production_change_pct if canary else None,
            "units": {
                "throughput_per_gpu": "tok/s in saturated seconds",
                "p99_latency": "ms",
                "ttft_p99": "ms",
                "tpot_p99": "ms",
                "error_rate": "%",
            },
            "source": "Prometheus",
        },
        "hypotheses": hypothesis_rows(story),
        "refused_by_guard": refused_by_guard(story),
        "adopted": story.plan.changes if story.plan and canary and canary.phase.value == "completed" else None,
        "proven": story.plan.changes if story.plan else None,
        "sandbox_prediction_pct": story.plan.expected_gain_pct if story.plan else None,
        "held_out_pct": _throughput_pct(story.verdict.held_out) if story.verdict else None,
        "production_answer_pct": canary.production_change_pct if canary else None,
        "measuring_share_pct": measuring_share_pct(story),
        "drill": {"decision_to_last_request_ms": drill_ms},
        "rollout": {
            "phase": canary.phase.value if canary else None,
            "decisions": [
                {"step": d.step, "share": d.share, "action": d.action, "outcome": d.judgement.outcome.value}
                for d in (canary.decisions if canary else ())
            ],
        },
        "stage_seconds": next((e.stage_seconds for e in story.ledger if e.kind == "campaign"), {}),
    }
