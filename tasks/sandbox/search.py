"""Which combinations to measure, and when a measurement has answered. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from infra.bench.workload import Workload
from tasks.sandbox.comparison import COST, LATENCIES, THROUGHPUT, THROUGHPUT_OF, compare_runs
from tasks.sandbox.judging import REFUSALS, judge_guards
from tasks.sandbox.records import MetricComparison, RunReadings, TrialResult
from tasks.shared.paired import effect_of, looks, pairs_to_decide, reaches
from tasks.shared.records import Criteria, Outcome, OutcomeClass, PrimaryMetric

FOLLOW_THROUGHPUT = frozenset({THROUGHPUT, COST})
"""Primary metrics that cannot get better unless throughput does: cost is the price over it."""

HOPELESS_FROM = 8
"""Pairs from which the spread is known well enough to say that the budget will not answer."""


def combinations(singles: Sequence[TrialResult], most: int) -> list[tuple[TrialResult, ...]]:
    """All effective members together, then the same with each member left out (spec C2, V7), at most `most`.

    A pair's leave-one-out is the other alone, which was measured already, so nothing is repeated.
    """
    effective = sorted((t for t in singles if t.outcome_class is OutcomeClass.EFFECTIVE), key=lambda t: t.trial_id)
    if len(effective) < 2 or most < 1:
        return []
    if len(effective) > 3 and most < 1 + len(effective):
        # Members whose share cannot be proven are not adopted, so the largest provable set is measured.
        gains = {t.trial_id: c.change_pct or 0.0 for t in effective if (c := t.comparison("throughput_per_gpu"))}
        effective = sorted(effective, key=lambda t: -gains.get(t.trial_id, 0.0))[:2]
    wanted = [tuple(effective)]
    if len(effective) > 2:
        wanted += list(itertools.combinations(effective, len(effective) - 1))
    if len(wanted) > most:
        gains = {t.trial_id: c.change_pct or 0.0 for t in effective if (c := t.comparison("throughput_per_gpu"))}
        best = sorted(effective, key=lambda t: -gains.get(t.trial_id, 0.0))[:2]
        wanted = [tuple(best)]
    return wanted[:most]


def answered(workload: Workload, runs: Sequence[RunReadings], criteria: Criteria, *, proves: bool) -> bool:
    """Whether further pairs of this workload would change nothing.

    At once: requests were refused that the baseline served, which is no matter of noise (case OB2). At a look only:
    the interval says what became of every primary metric that this workload gives, or at recorded load of every guard.
    After `HOPELESS_FROM` pairs also when more than the budget would be needed; the trial is then unstable.

    Args:
        proves: a combination, or the held-out measurement: its target decides, and it is never given up early.
    """
    found = {c.metric: c for c in compare_runs(runs, criteria)}
    guards = judge_guards(tuple(found.values()), criteria)[0]
    if any(r.rule in REFUSALS and r.outcome is Outcome.FAIL for r in guards):
        return True
    measuring = criteria.measuring
    pairs = 1 + max((r.pair for r in runs if r.workload == workload), default=-1)
    if pairs not in looks(measuring.most_pairs):
        return False
    if workload == "recorded":
        limits = [r for r in guards if r.rule in LATENCIES]
        waits = any(r.outcome is Outcome.INCONCLUSIVE for r in limits)
        return any(r.outcome is Outcome.FAIL for r in limits) or not (waits or _open(criteria, found, proves))
    throughput = found.get(THROUGHPUT_OF[workload])
    said = throughput.estimate if throughput is not None else None
    if said is None:
        return False
    effect = effect_of(said, measuring.smallest_gain_pct)
    if workload != "saturating":
        return effect != "unstable"
    if proves and effect in ("effective", "unstable"):
        targets = [reaches(c.estimate, m.target_pct) for m in _following(criteria) if (c := found.get(m.name))]
        return Outcome.PASS in targets or (bool(targets) and Outcome.INCONCLUSIVE not in targets)
    if effect != "unstable":
        return True
    needed = pairs_to_decide(said, measuring.smallest_gain_pct) if pairs >= HOPELESS_FROM else 0
    return not proves and (needed is None or needed > measuring.most_pairs)


def worth_recording(runs: Sequence[RunReadings], criteria: Criteria) -> bool:
    """Whether latencies are measured at all: throughput is better, or a primary metric does not follow from it; and
    nothing was refused, which decides by itself."""
    found = {c.metric: c for c in compare_runs(runs, criteria)}
    if any(r.rule in REFUSALS and r.outcome is Outcome.FAIL for r in judge_guards(tuple(found.values()), criteria)[0]):
        return False
    if any(m.name not in FOLLOW_THROUGHPUT for m in criteria.primary):
        return True
    throughput = found.get(THROUGHPUT)
    return throughput is not None and (
        effect_of(throughput.estimate, criteria.measuring.smallest_gain_pct) == "effective"
    )


def _following(criteria: Criteria) -> list[PrimaryMetric]:
    return [m for m in criteria.primary if m.name in FOLLOW_THROUGHPUT]


def _open(criteria: Criteria, found: dict[str, MetricComparison], proves: bool) -> bool:
    """Whether a primary metric at recorded load is not decided yet."""
    for metric in criteria.primary:
        said = found.get(metric.name)
        if metric.name not in LATENCIES or said is None:
            continue
        if proves and reaches(said.estimate, metric.target_pct) is Outcome.INCONCLUSIVE:
            return True
        gain_pct = criteria.measuring.smallest_gain_pct
        if effect_of(said.estimate, gain_pct, direction=metric.direction) == "unstable":
            return True
    return False
