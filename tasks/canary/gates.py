"""Data-quality gates before stage 5: the verdict that a plan rests on, and the plan. Pure data."""

from __future__ import annotations

from infra.quality.suite import GateSuite, between, matches, not_blank, one_of
from tasks.canary.records import RolloutPlan
from tasks.sandbox.records import SandboxVerdict, TrialResult

SHA256 = r"^[0-9a-f]{64}$"


def verdict_rows(verdict: SandboxVerdict) -> list[dict[str, object]]:
    """One row: what of a verdict must hold before anyone is asked to approve."""
    winner, held_out = verdict.winner, verdict.held_out
    return [
        {
            "outcome": str(verdict.judgement.outcome),
            "criteria_hash": verdict.criteria_hash,
            "pinned": verdict.pinned,
            "winner": winner is not None and winner.outcome_class == "effective",
            "held_out": held_out is not None and held_out.held_out and held_out.outcome_class == "effective",
            "same_configuration": winner is not None
            and held_out is not None
            and winner.config_hash == held_out.config_hash,
            "correctness": _correct(winner) or _correct(held_out),
            "trials": len(verdict.trials),
        }
    ]


def _correct(trial: TrialResult | None) -> bool:
    return trial is not None and trial.correctness is not None and trial.correctness.judgement.outcome == "PASS"


VERDICT = GateSuite(
    name="sandbox verdict",
    min_rows=1,
    expectations=(
        one_of("outcome", ("PASS",)),
        matches("criteria_hash", SHA256),
        one_of("pinned", (True,)),
        one_of("winner", (True,)),
        one_of("held_out", (True,)),
        one_of("same_configuration", (True,)),
        one_of("correctness", (True,)),
        between("trials", 1, None),
    ),
)


def plan_rows(plan: RolloutPlan) -> list[dict[str, object]]:
    """One row a step of the plan, the plan's own facts repeated in each."""
    shares = [step.share for step in plan.steps]
    return [
        {
            "plan_id": plan.plan_id,
            "criteria_hash": plan.criteria_hash,
            "verdict_hash": plan.verdict_hash,
            "config_hash_agrees": plan.config.config_hash() == plan.config_hash,
            "baseline_hash_agrees": plan.baseline_config.config_hash() == plan.baseline_hash,
            "changes_something": bool(plan.changes) and plan.config_hash != plan.baseline_hash,
            "share": step.share,
            "rising": shares == sorted(set(shares)),
            "ends_full": shares[-1] == 1.0,
            "duration_s": step.duration_s,
            "holds_long_enough": step.max_hold_s >= step.duration_s,
            "stops": len(step.stop_on),
        }
        for step in plan.steps
    ]


PLAN = GateSuite(
    name="rollout plan",
    min_rows=1,
    expectations=(
        not_blank("plan_id"),
        matches("criteria_hash", SHA256),
        matches("verdict_hash", SHA256),
        one_of("config_hash_agrees", (True,)),
        one_of("baseline_hash_agrees", (True,)),
        one_of("changes_something", (True,)),
        between("share", 0, 1, strict_minimum=True),
        one_of("rising", (True,)),
        one_of("ends_full", (True,)),
        between("duration_s", 0, None, strict_minimum=True),
        one_of("holds_long_enough", (True,)),
        between("stops", 1, None),
    ),
)
