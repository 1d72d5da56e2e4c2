"""From runs to comparisons: which runs give which metric, and whether the runs may be compared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infra.bench.workload import Workload
from infra.readings import Mark
from tasks.hypothesis.records import Scalar
from tasks.sandbox.records import MetricComparison, RunReadings
from tasks.shared.metric_names import METRICS, RATES
from tasks.shared.outcomes import judgement
from tasks.shared.records import Criteria, Judgement, Outcome, Reading, Reason
from tasks.shared.statistics import ArrivalBlocks, block_bootstrap_ratio, change, median, spread_pct

THROUGHPUT = "throughput_per_gpu"
COST = "cost_per_million_tokens"

THROUGHPUT_OF: dict[Workload, str] = {
    "saturating": THROUGHPUT,
    "short_prompts": "throughput_short_prompts",
    "long_prompts": "throughput_long_prompts",
}
"""Throughput is read in closed loop; under its own name for each load, so that no reading stands for two."""

WORST: dict[str, Callable[[Sequence[float]], float]] = {
    "error_rate": max,
    "coverage": min,
    "oom_count": max,
    "peak_memory": max,
    "preemptions": max,
}
"""Metrics of which the worst run counts, void runs included: a run that was voided because requests failed
must not take its failures with it (case OB2)."""

ALWAYS = (
    *THROUGHPUT_OF.values(),
    COST,
    "p50_latency",
    "p90_latency",
    "p99_latency",
    "ttft_p99",
    "tpot_p99",
    "error_rate",
    "coverage",
    "oom_count",
    "peak_memory",
)

CACHE_KNOBS = frozenset(
    {
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "block_size",
        "kv_cache_dtype",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "VLLM_CPU_KVCACHE_SPACE",
        "max_model_len",
        "kv_offloading_size",
    }
)
"""Knobs that change what the prefix cache keeps: a differing hit rate is their effect, not a fault of the
pair."""

SCHEDULING_KNOBS = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "scheduling_policy",
        "async_scheduling",
        "max_num_scheduled_tokens",
    }
)
"""Knobs that change which requests meet in the cache, so the hit rate moves somewhat with them."""

SAME_HIT_RATE_POINTS = 5.0
SAME_UNDER_SCHEDULING_POINTS = 10.0


def compare_runs(
    runs: Sequence[RunReadings],
    criteria: Criteria,
    floors: Mapping[str, float | None],
    *,
    blocks: Mapping[str, ArrivalBlocks] | None = None,
    seed: int = 1,
    resamples: int = 1000,
) -> tuple[MetricComparison, ...]:
    """Candidate against baseline on every metric that the criteria name, and on the usual ones.

    Throughput: median over the valid runs of its load (spec V4, V11). Cost: from the price and that throughput.
    Latencies and other medians: valid recorded runs. Error rate, coverage, OOM count, memory: the worst run
    of all. A metric that one run lacks is unknown. Rates are in per cent.

    Args:
        floors: A/A floor by metric, %; a metric that is absent has none.
        blocks: values by arrival block, for 95 % intervals; metrics without get none.
        seed: of the resampling.
    """
    named = [m.name for m in criteria.primary] + [g.name for g in criteria.guards]
    names = dict.fromkeys((*ALWAYS, *named, "prefix_hit_rate"))
    return tuple(
        _compare(
            name,
            runs,
            criteria,
            floors=floors,
            blocks=(blocks or {}).get(name),
            seed=seed,
            resamples=resamples,
        )
        for name in names
        if name in named or name == COST or any(name in run.metrics for run in runs)
    )


def _compare(
    name: str,
    runs: Sequence[RunReadings],
    criteria: Criteria,
    *,
    floors: Mapping[str, float | None],
    blocks: ArrivalBlocks | None,
    seed: int,
    resamples: int,
) -> MetricComparison:
    baseline, spread_b = _side(name, "baseline", runs, criteria)
    candidate, spread_c = _side(name, "candidate", runs, criteria)
    relative, absolute = change(baseline, candidate, absolute_floor=_absolute_floor(name, criteria))
    low = high = None
    if blocks is not None and relative is not None:
        interval = block_bootstrap_ratio(
            blocks.baseline, blocks.candidate, statistic=blocks.statistic, seed=seed, n=resamples
        )
        low, high = interval if interval is not None else (None, None)
    spreads = [s for s in (spread_b, spread_c) if s is not None]
    # Cost is a function of throughput alone, so it is as noisy as throughput is.
    floor = floors.get(name, floors.get(THROUGHPUT) if name == COST else None)
    return MetricComparison(
        metric=name,
        baseline=baseline,
        candidate=candidate,
        change_pct=relative,
        change_abs=absolute,
        low_pct=low,
        high_pct=high,
        floor_pct=floor,
        spread_pct=max(spreads) if spreads else None,
    )


def _absolute_floor(name: str, criteria: Criteria) -> float:
    return next((g.absolute_floor for g in criteria.guards if g.name == name), 0.0)


def _side(
    name: str,
    side: str,
    runs: Sequence[RunReadings],
    criteria: Criteria,
) -> tuple[Reading, float | None]:
    unit = METRICS[name].unit if name in METRICS else ""
    if name == COST:
        throughput, spread = _side(THROUGHPUT, side, runs, criteria)
        return _cost(throughput, criteria.price_per_accelerator_hour), spread
    mine = [run for run in runs if run.side == side]
    if name in WORST:
        readings = [_read(run, name) for run in mine]
        return _of_runs(readings, WORST[name], unit, f"no {side} run"), None
    workload = next((load for load, metric in THROUGHPUT_OF.items() if metric == name), "recorded")
    readings = [_read(run, name) for run in mine if run.valid and run.workload == workload]
    reading = _of_runs(readings, lambda values: median(values) or 0.0, unit, f"no valid {workload} run of the {side}")
    return reading, spread_pct([r.value for r in readings if r.value is not None])


def _of_runs(
    readings: Sequence[Reading],
    pick: Callable[[Sequence[float]], float],
    unit: str,
    none: str,
) -> Reading:
    """One reading of several; unknown as soon as one of them is, marked as soon as one of them is."""
    if not readings:
        return Reading.unknown(none, unit=unit)
    lacking = next((r for r in readings if r.value is None), None)
    if lacking is not None:
        return Reading.unknown(lacking.cause, unit=unit, source=lacking.source)
    units = {r.unit for r in readings}
    if len(units) > 1:
        return Reading.unknown(f"the runs are in different units: {', '.join(sorted(units))}", unit=unit)
    marked = next((r for r in readings if r.mark != "exact"), None)
    mark: Mark = marked.mark if marked is not None else "exact"
    samples = [r.samples for r in readings if r.samples is not None]
    return Reading.of(
        pick([r.value for r in readings if r.value is not None]),
        readings[0].unit or unit,
        samples=sum(samples) if samples else None,
        mark=mark,
        cause=marked.cause if marked is not None else "",
        source=f"{len(readings)} run{'s' if len(readings) > 1 else ''}",
    )


def _read(run: RunReadings, name: str) -> Reading:
    where = f"{run.side} {run.workload} run {run.repeat}"
    found = run.metrics.get(name)
    if found is None:
        return Reading.unknown(f"{where} has no {name}")
    if found.value is None or name not in RATES or found.unit == "%":
        return found
    if found.unit == "ratio":
        return found.model_copy(update={"value": found.value * 100, "unit": "%"})
    return Reading.unknown(f"{where} gives {name} in {found.unit or 'no unit'}; ratio and % are known")


def _cost(throughput: Reading, price: float) -> Reading:
    unit = METRICS[COST].unit
    if throughput.value is None:
        return Reading.unknown(throughput.cause, unit=unit)
    if throughput.value <= 0:
        return Reading.unknown("no token was generated, so none has a price", unit=unit)
    return Reading.of(
        price / (throughput.value * 3600) * 1e6,
        unit,
        mark=throughput.mark,
        cause=throughput.cause,
        source=f"{price:g} an accelerator hour over {throughput.text()}",
    )


def unstable(runs: Sequence[RunReadings], criteria: Criteria) -> tuple[str, ...]:
    """Why the runs are too unsteady to be shown as a result (spec V3); nothing when they are steady.

    Throughput of one side may spread over its repeats by `max_throughput_spread_pct`, and each side needs
    `runs_per_side` valid runs of each load and, where recorded load was run, `recorded_runs_per_side` of that.
    """
    found: list[str] = []
    measuring = criteria.measuring
    workloads: list[Workload] = sorted({*(run.workload for run in runs), "saturating"})
    for side in ("baseline", "candidate"):
        for workload in workloads:
            mine = [run for run in runs if run.side == side and run.workload == workload]
            valid = [run for run in mine if run.valid]
            needed = measuring.recorded_runs_per_side if workload == "recorded" else measuring.runs_per_side
            if len(valid) < needed:
                causes = "; ".join(sorted({reason for run in mine for reason in run.invalid_reasons}))
                found.append(
                    f"{side} has {len(valid)} valid {workload} runs of {needed} needed"
                    + (f" ({causes})" if causes else "")
                )
            if workload == "recorded":
                continue
            values = [v for run in valid if (v := _read(run, THROUGHPUT_OF[workload]).value) is not None]
            spread = spread_pct(values)
            if spread is not None and spread > measuring.max_throughput_spread_pct:
                found.append(
                    f"throughput of the {side} ({workload}) spreads {spread:.1f} % over {len(values)} runs, "
                    f"{measuring.max_throughput_spread_pct:g} % are allowed"
                )
    return tuple(found)


def comparable_cache(runs: Sequence[RunReadings], changes: Mapping[str, Scalar]) -> Judgement:
    """Whether prefix-cache hit rates let the pair be compared (case LG5).

    PASS: equal within 5 points (10 where a scheduling knob changed), or different because a cache knob
    changed. INCONCLUSIVE: they differ for another reason, or repeats of one side do, which is what a cache
    left warm by the run before looks like. NO_DATA: a valid run has no `prefix_hit_rate`.
    """
    reasons: list[Reason] = []
    knobs = set(changes)
    allowed = SAME_UNDER_SCHEDULING_POINTS if knobs & SCHEDULING_KNOBS else SAME_HIT_RATE_POINTS
    for workload in sorted({run.workload for run in runs}):
        rates: dict[str, list[float]] = {}
        for run in runs:
            if run.workload != workload or not run.valid:
                continue
            reading = _read(run, "prefix_hit_rate")
            if reading.value is None:
                reasons.append(
                    Reason(
                        rule="prefix_hit_rate",
                        outcome=Outcome.NO_DATA,
                        text=f"prefix_hit_rate is {reading.text()}",
                    )
                )
            else:
                rates.setdefault(run.side, []).append(reading.value)
        for side, values in sorted(rates.items()):
            width = max(values) - min(values)
            if width > SAME_UNDER_SCHEDULING_POINTS:
                reasons.append(
                    _cache(
                        Outcome.INCONCLUSIVE,
                        width,
                        SAME_UNDER_SCHEDULING_POINTS,
                        f"repeats of the {side} ({workload}) hit the prefix cache at {min(values):.1f} to "
                        f"{max(values):.1f} %: a run found it warm",
                    )
                )
        sides = {side: median(values) for side, values in rates.items()}
        one, two = sides.get("baseline"), sides.get("candidate")
        if one is None or two is None:
            continue
        text = f"{workload} runs hit the prefix cache at {one:.1f} % (baseline) and {two:.1f} % (candidate)"
        if abs(one - two) <= allowed:
            reasons.append(_cache(Outcome.PASS, abs(one - two), allowed, text))
        elif knobs & CACHE_KNOBS:
            reasons.append(
                _cache(
                    Outcome.PASS,
                    abs(one - two),
                    allowed,
                    f"{text}, which {', '.join(sorted(knobs & CACHE_KNOBS))} explains",
                )
            )
        else:
            reasons.append(
                _cache(
                    Outcome.INCONCLUSIVE,
                    abs(one - two),
                    allowed,
                    f"{text}, which {', '.join(sorted(knobs)) or 'no change'} does not explain",
                )
            )
    return judgement(reasons)


def _cache(outcome: Outcome, observed: float, limit: float, text: str) -> Reason:
    return Reason(
        rule="prefix_hit_rate",
        outcome=outcome,
        text=text,
        observed=observed,
        limit=limit,
        unit="percentage points",
    )
