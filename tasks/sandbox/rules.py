"""Stage 4's decisions, by name; each lives in the module that it is imported from. Pure."""

from __future__ import annotations

from tasks.sandbox.comparison import comparable_cache, compare_runs
from tasks.sandbox.judging import (
    classify,
    judge_guards,
    judge_single,
    judge_trial,
    objective,
    predicted_combination_pct,
    sandbox_discount_pct,
    synergy_pct,
)
from tasks.sandbox.verdict import sandbox_verdict
from tasks.sandbox.winner import members_contribute, pick_winner

__all__ = [
    "classify",
    "comparable_cache",
    "compare_runs",
    "judge_guards",
    "judge_single",
    "judge_trial",
    "members_contribute",
    "objective",
    "pick_winner",
    "predicted_combination_pct",
    "sandbox_discount_pct",
    "sandbox_verdict",
    "synergy_pct",
]
