"""The six questions before a campaign (spec P1), over measured answers. Pure."""

from __future__ import annotations

import re

from pydantic import Field

from tasks.shared.outcomes import judgement
from tasks.shared.records import Judgement, Outcome, Reason, Record

SLOWEST_ROLLBACK_MS = 10_000.0
"""Rollback is done in seconds (spec P1, R3)."""

_SHAPE = re.compile(r"^(.*?)\s*[x×]\s*(\d+)$")


class Measured(Record):
    """What was measured to answer the questions. None means that nobody has measured it, which is no yes."""

    window_s: float = Field(description="length of the production window of the baseline")
    window_needed_s: float = Field(description="as the criteria demand")
    sandbox_shape: str = Field(description="accelerator model and count, e.g. `H100-80GB x8`")
    production_shape: str
    stated_ratio: str = Field(default="", description="how a sandbox of another count stands for production, in words")
    traffic_objects: int | None = Field(description="objects of real traffic to replay")
    criteria_pinned: bool = Field(description="the criteria are a committed file")
    switch_drill_ms: float | None = Field(description="measured duration of the last rollback drill")
    max_rollback_ms: float = SLOWEST_ROLLBACK_MS
    rollout_under_way: str = Field(default="", description="identifier of a rollout of the target, if one runs")
    rollback_failed: str = Field(default="", description="identifier of a rollout whose rollback failed")
    new_model: bool = Field(default=False, description="a model without production history")


def same_shape(sandbox: str, production: str, *, stated_ratio: str = "") -> bool:
    """Whether results of the sandbox count for production (spec S2).

    The accelerator model must be the same; the count too, unless a ratio is stated in words.
    """
    one, two = sandbox.strip().lower(), production.strip().lower()
    if not one or not two:
        return False
    if one == two:
        return True
    a, b = _SHAPE.match(one), _SHAPE.match(two)
    if a is None or b is None or a.group(1) != b.group(1):
        return False
    return a.group(2) == b.group(2) or bool(stated_ratio.strip())


def judge_preconditions(measured: Measured) -> tuple[Judgement, dict[str, str]]:
    """The judgement, and each question's answer in words by its key.

    Any no is a FAIL and any unmeasured answer NO_DATA, so either stops the campaign. A newly released model
    has no history: its first question is answered by a sandbox A/A baseline, and the campaign ends as
    "awaiting production baseline".
    """
    reasons = [
        _baseline(measured),
        _shape(measured),
        _traffic(measured),
        _criteria(measured),
        _rollback(measured),
        _stable(measured),
    ]
    return judgement(reasons), {r.rule: f"{_WORD[r.outcome]}: {r.text}" for r in reasons}


_WORD = {
    Outcome.PASS: "yes",
    Outcome.FAIL: "no",
    Outcome.NO_DATA: "not known",
    Outcome.INCONCLUSIVE: "not decided",
    Outcome.ERROR: "not readable",
}


def _reason(
    rule: str,
    outcome: Outcome,
    text: str,
    observed: float | None = None,
    limit: float | None = None,
    unit: str = "",
) -> Reason:
    return Reason(rule=rule, outcome=outcome, text=text, observed=observed, limit=limit, unit=unit)


def _baseline(m: Measured) -> Reason:
    if m.new_model:
        return _reason(
            "trusted_baseline",
            Outcome.PASS,
            "a new model has no history; a sandbox A/A baseline stands "
            "in, and the campaign ends as awaiting production baseline",
        )
    if m.window_s < m.window_needed_s:
        return _reason(
            "trusted_baseline",
            Outcome.FAIL,
            f"the window is {m.window_s:,.0f} s long and the criteria demand {m.window_needed_s:,.0f} s",
            m.window_s,
            m.window_needed_s,
            "s",
        )
    return _reason(
        "trusted_baseline",
        Outcome.PASS,
        f"the window is {m.window_s:,.0f} s long, {m.window_needed_s:,.0f} s are demanded",
        m.window_s,
        m.window_needed_s,
        "s",
    )


def _shape(m: Measured) -> Reason:
    if same_shape(m.sandbox_shape, m.production_shape, stated_ratio=m.stated_ratio):
        ratio = f", at the stated ratio {m.stated_ratio}" if m.stated_ratio else ""
        return _reason("same_shape", Outcome.PASS, f"sandbox {m.sandbox_shape}, production {m.production_shape}{ratio}")
    return _reason(
        "same_shape",
        Outcome.FAIL,
        f"the sandbox is {m.sandbox_shape or 'unknown'} and production "
        f"{m.production_shape or 'unknown'}, so every result would be unverified",
    )


def _traffic(m: Measured) -> Reason:
    if m.traffic_objects is None:
        return _reason("real_traffic", Outcome.NO_DATA, "the traffic store was not listed")
    outcome = Outcome.PASS if m.traffic_objects > 0 else Outcome.FAIL
    return _reason(
        "real_traffic",
        outcome,
        f"{m.traffic_objects:,} objects of recorded traffic",
        float(m.traffic_objects),
        1.0,
        "objects",
    )


def _criteria(m: Measured) -> Reason:
    if m.criteria_pinned:
        return _reason("criteria_committed", Outcome.PASS, "the criteria are committed and pinned")
    return _reason("criteria_committed", Outcome.FAIL, "the criteria are not a committed file")


def _rollback(m: Measured) -> Reason:
    if m.rollback_failed:
        return _reason(
            "rollback_drilled",
            Outcome.FAIL,
            f"the rollback of rollout {m.rollback_failed} failed; repair production first",
        )
    if m.switch_drill_ms is None:
        text = "no rollback drill of this target is in the ledger: run `ratchet drill --model MODEL --pool POOL`"
        return _reason("rollback_drilled", Outcome.NO_DATA, text)
    outcome = Outcome.PASS if m.switch_drill_ms <= m.max_rollback_ms else Outcome.FAIL
    return _reason(
        "rollback_drilled",
        outcome,
        f"the last drill took {m.switch_drill_ms:,.0f} ms, {m.max_rollback_ms:,.0f} ms are allowed",
        m.switch_drill_ms,
        m.max_rollback_ms,
        "ms",
    )


def _stable(m: Measured) -> Reason:
    if m.rollout_under_way:
        return _reason("system_stable", Outcome.FAIL, f"rollout {m.rollout_under_way} of this target is under way")
    return _reason(
        "system_stable", Outcome.PASS, "no rollout is under way; stage 1 looks for restarts in the window and for drift"
    )
