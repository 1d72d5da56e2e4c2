"""From spans to comparisons: which spans give which metric, and whether both sides may be compared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infra.bench.workload import Workload
from infra.readings import Mark
from tasks.hypothesis.records import Scalar
from tasks.sandbox.records import MetricComparison, RunReadings
from tasks.shared.metric_names import METRICS, RATES
from tasks.shared.outcomes import judgement
from tasks.shared.paired import estimate, log_ratio
from tasks.shared.records import Criteria, Judgement, Outcome, Reading, Reason
from tasks.shared.statistics import change, median

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
"""Metrics of which the worst span counts, void ones included: a span that was voided because requests failed
must not take its failures with it (case OB2). They are no ratio of pairs."""

LATENCIES = ("p50_latency", "p90_latency", "p99_latency", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
"""Measured at recorded load, in pairs as throughput is."""

PAIRED = frozenset({*THROUGHPUT_OF.values(), COST, *LATENCIES})

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
measurement."""

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
SAME_IN_A_LOOP_POINTS = 10.0
"""In a closed loop the faster side comes to other requests, and where scheduling changed, requests meet otherwise."""


def compare_runs(runs: Sequence[RunReadings], criteria: Criteria, design: str = "") -> tuple[MetricComparison, ...]:
    """Candidate against baseline on every metric that the criteria name, and on the usual ones.

    Throughput of each load and latencies at recorded load are compared pair by pair (`tasks/shared/paired.py`); their
    readings are medians over the valid spans. Cost follows from the price and the throughput. Error rate, coverage,
    OOM count, memory: the worst span of all. A metric that one valid span lacks is unknown. Rates are in per cent.
    """
    named = [m.name for m in criteria.primary] + [g.name for g in criteria.guards]
    names = dict.fromkeys((*ALWAYS, *named))
    return tuple(
        _compare(name, runs, criteria, design)
        for name in names
        if name in named or name == COST or any(name in run.metrics for run in runs)
    )


def _compare(name: str, runs: Sequence[RunReadings], criteria: Criteria, design: str) -> MetricComparison:
    baseline, candidate = (_side(name, side, runs, criteria) for side in ("baseline", "candidate"))
    relative, absolute = change(baseline, candidate, absolute_floor=_absolute_floor(name, criteria))
    ratios = _log_ratios(name, runs)
    found = estimate(ratios)
    return MetricComparison(
        metric=name,
        baseline=baseline,
        candidate=candidate,
        change_pct=relative if found is None else found.change_pct,
        change_abs=absolute,
        low_pct=None if found is None else found.low_pct,
        high_pct=None if found is None else found.high_pct,
        paired=name in PAIRED,
        log_ratios=ratios,
        design=design if name in PAIRED else "",
    )


def _log_ratios(name: str, runs: Sequence[RunReadings]) -> tuple[float, ...]:
    """One number for each pair whose four readings are there and valid."""
    if name == COST:  # it is the price over the throughput
        return tuple(-d for d in _log_ratios(THROUGHPUT, runs))
    if name not in PAIRED:
        return ()
    workload = _workload_of(name)
    values: dict[int, dict[tuple[str, str], float]] = {}
    for run in runs:
        if run.workload == workload and run.valid and (value := _read(run, name).value) is not None:
            values.setdefault(run.pair, {})[run.order, run.side] = value
    found = []
    for _, four in sorted(values.items()):
        orders = [(four.get((o, "baseline"), 0.0), four.get((o, "candidate"), 0.0)) for o in ("AB", "BA")]
        if (d := log_ratio(orders)) is not None:
            found.append(d)
    return tuple(found)


def _workload_of(name: str) -> Workload:
    return next((load for load, metric in THROUGHPUT_OF.items() if metric == name), "recorded")


def _absolute_floor(name: str, criteria: Criteria) -> float:
    return next((g.absolute_floor for g in criteria.guards if g.name == name), 0.0)


def _side(name: str, side: str, runs: Sequence[RunReadings], criteria: Criteria) -> Reading:
    unit = METRICS[name].unit if name in METRICS else ""
    if name == COST:
        return _cost(_side(THROUGHPUT, side, runs, criteria), criteria.price_per_accelerator_hour)
    mine = [run for run in runs if run.side == side]
    if name in WORST:
        return _of_runs([_read(run, name) for run in mine], WORST[name], unit, f"no {side} span")
    workload = _workload_of(name)
    readings = [_read(run, name) for run in mine if run.valid and run.workload == workload]
    return _of_runs(readings, lambda values: median(values) or 0.0, unit, f"no valid {workload} span of the {side}")


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
        return Reading.unknown(f"the spans are in different units: {', '.join(sorted(units))}", unit=unit)
    marked = next((r for r in readings if r.mark != "exact"), None)
    mark: Mark = marked.mark if marked is not None else "exact"
    samples = [r.samples for r in readings if r.samples is not None]
    return Reading.of(
        pick([r.value for r in readings if r.value is not None]),
        readings[0].unit or unit,
        samples=sum(samples) if samples else None,
        mark=mark,
        cause=marked.cause if marked is not None else "",
        source=f"{len(readings)} span{'s' if len(readings) > 1 else ''}",
    )


def _read(run: RunReadings, name: str) -> Reading:
    where = f"{run.side} {run.workload} span {run.order} of pair {run.pair + 1}"
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


def comparable_cache(runs: Sequence[RunReadings], changes: Mapping[str, Scalar]) -> Judgement:
    """Whether prefix-cache hit rates let both sides be compared (case LG5). Shared prefixes stay warm on both, and no
    private text is sent twice (infra/replay/variants.py), so equal engines hit equally.

    PASS: equal within 5 points (10 in a closed loop, or where a scheduling knob changed), or different because a cache
    knob changed. INCONCLUSIVE: they differ for another reason. NO_DATA: a valid span has no `prefix_hit_rate`.
    """
    reasons: list[Reason] = []
    knobs = set(changes)
    for workload in sorted({run.workload for run in runs}):
        wide = workload != "recorded" or knobs & SCHEDULING_KNOBS
        allowed = SAME_IN_A_LOOP_POINTS if wide else SAME_HIT_RATE_POINTS
        rates: dict[str, list[tuple[float, float]]] = {}
        for run in runs:
            if run.workload != workload or not run.valid:
                continue
            reading = _read(run, "prefix_hit_rate")
            if reading.value is None:
                text = f"prefix_hit_rate is {reading.text()}"
                reasons.append(Reason(rule="prefix_hit_rate", outcome=Outcome.NO_DATA, text=text))
            else:
                rates.setdefault(run.side, []).append((reading.value, float(reading.samples or 1)))
        one, two = (_weighted(rates.get(side, [])) for side in ("baseline", "candidate"))
        if one is None or two is None:
            continue
        text = f"{workload} spans hit the prefix cache at {one:.1f} % (baseline) and {two:.1f} % (candidate)"
        outcome = Outcome.PASS
        if abs(one - two) > allowed:
            explains = sorted(knobs & CACHE_KNOBS)
            outcome = Outcome.PASS if explains else Outcome.INCONCLUSIVE
            text += f", which {', '.join(explains or sorted(knobs)) or 'no change'} "
            text += "explains" if explains else "does not explain"
        reasons.append(
            Reason(
                rule="prefix_hit_rate",
                outcome=outcome,
                text=text,
                observed=abs(one - two),
                limit=allowed,
                unit="percentage points",
            )
        )
    return judgement(reasons)


def _weighted(rates: Sequence[tuple[float, float]]) -> float | None:
    """Mean of (rate, looked up); a span in which more was looked up counts for more."""
    total = sum(weight for _, weight in rates)
    return sum(rate * weight for rate, weight in rates) / total if total else None
