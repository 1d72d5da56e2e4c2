"""Which combinations to measure, when a pair is decided early, and the blocks behind intervals. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import polars as pl

from infra.bench.measure import MeasuredRun
from tasks.sandbox.records import TrialResult
from tasks.shared.records import OutcomeClass
from tasks.shared.statistics import ArrivalBlocks, Blocks, arrival_blocks, work_blocks

BLOCK_S = 2.0
"""Length of an arrival block: several times the service time of a short request."""

MOST_BLOCKS = 50
"""Shares into which a closed loop is cut for an interval of its rate."""

FOLLOW_THROUGHPUT = ("throughput_per_gpu", "cost_per_million_tokens")
"""Primary metrics that cannot get better unless throughput does: cost is the price over it."""


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


def _rate(run: MeasuredRun) -> float | None:
    return run.result.summary.output_tokens_per_s if run.workload == "saturating" else None


def decided_early(
    runs: Sequence[MeasuredRun], floor_pct: float | None, *, primaries: Collection[str] = FOLLOW_THROUGHPUT
) -> bool:
    """Whether a further repeat could not make this trial adoptable.

    True when the candidate refuses requests that the baseline served: the same requests would be refused again
    (case OB2). True when its throughput is no better at all and no primary metric could be met without it: to beat the
    A/A floor in the mean, the repeats that are left would have to swing by more than twice what noise alone was seen
    to do. Never true for a trial that looks good: a win is always measured with every repeat, so early endings can lose
    a gain and cannot adopt one.

    Args:
        floor_pct: A/A floor of throughput, %.
        primaries: the criteria's primary metrics. One that does not follow from throughput, such as a latency, may
            reach its target without it: then no trial ends early for its throughput.
    """
    refused = {
        side: {
            row
            for run in runs
            if run.side == side
            for row in run.result.requests.filter(pl.col("status") != "ok")["request_id"].to_list()
        }
        for side in ("baseline", "candidate")
    }
    if refused["candidate"] - refused["baseline"]:
        return True
    if not set(primaries) <= set(FOLLOW_THROUGHPUT):
        return False
    rates = {
        side: [r for run in runs if run.side == side and (r := _rate(run)) is not None]
        for side in ("baseline", "candidate")
    }
    if floor_pct is None or not rates["baseline"] or not rates["candidate"]:
        return False
    baseline = sum(rates["baseline"]) / len(rates["baseline"])
    candidate = sum(rates["candidate"]) / len(rates["candidate"])
    return baseline > 0 and candidate <= baseline


def _latency_blocks(run: MeasuredRun) -> Blocks:
    served = run.result.requests.filter(pl.col("status") == "ok")
    values = ((served["end_s"] - served["planned_s"]) * 1000).to_list()
    return arrival_blocks(served["planned_s"].to_list(), values, BLOCK_S)


def _token_blocks(run: MeasuredRun) -> Blocks:
    """Equal shares of the work, each of at least as many requests as there are slots: what is shorter holds nothing
    but the requests that are under way anyway."""
    summary = run.result.summary
    if not summary.concurrency:
        return ()
    served = run.result.requests.filter(pl.col("status") == "ok")
    return work_blocks(
        served["first_token_s"].to_list(),
        served["last_token_s"].to_list(),
        served["output_tokens"].to_list(),
        min(MOST_BLOCKS, summary.requests // summary.concurrency),
    )


def recorded_blocks(runs: Sequence[MeasuredRun]) -> dict[str, ArrivalBlocks]:
    """What the intervals of throughput and of the median and P99 latency are resampled from."""

    def of(side: str, workload: str) -> list[MeasuredRun]:
        return [r for r in runs if r.side == side and r.workload == workload]

    blocks: dict[str, ArrivalBlocks] = {}
    b, c = of("baseline", "recorded"), of("candidate", "recorded")
    if b and c:
        latency_b, latency_c = tuple(map(_latency_blocks, b)), tuple(map(_latency_blocks, c))
        blocks["p50_latency"] = ArrivalBlocks(
            metric="p50_latency", statistic="p50", baseline=latency_b, candidate=latency_c
        )
        blocks["p99_latency"] = ArrivalBlocks(
            metric="p99_latency", statistic="p99", baseline=latency_b, candidate=latency_c
        )
    b, c = of("baseline", "saturating"), of("candidate", "saturating")
    if b and c:
        blocks["throughput_per_gpu"] = ArrivalBlocks(
            metric="throughput_per_gpu",
            statistic="rate",
            baseline=tuple(map(_token_blocks, b)),
            candidate=tuple(map(_token_blocks, c)),
        )
    return blocks
