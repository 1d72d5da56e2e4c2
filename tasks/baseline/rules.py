"""Stage 1's decisions: spread, drift, noise floors, cost. Pure.

Unknown stays unknown: nothing here turns a reading that could not be taken into a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from infra.engine.config import ServingConfig
from tasks.baseline.records import BaselineReport, MetricBaseline, NoiseFloor
from tasks.shared import statistics as stats
from tasks.shared.outcomes import judgement
from tasks.shared.records import Judgement, Outcome, Reading, Reason, Target, Window


def spread_pct(slices: Sequence[Reading]) -> float | None:
    """Within-window spread, (max - min) / median in %, over the slices that judge (spec B3).

    None with fewer than two such slices, or around a median of zero.
    """
    return stats.spread_pct([r.value for r in slices if r.judges and r.value is not None])


def metric_baseline(
    name: str, reading: Reading, *, slices: Sequence[Reading] = (), week_before: Reading | None = None
) -> MetricBaseline:
    """One metric of the baseline, with the spread that belongs to it."""
    return MetricBaseline(
        name=name,
        reading=reading,
        spread_pct=spread_pct(slices),
        slices=tuple(slices),
        week_before=week_before,
    )


def week_to_week_pct(metrics: Sequence[MetricBaseline]) -> dict[str, float]:
    """How much each metric differs between the window and the same hours of the week before, in % and without sign,
    where both are known: production changes by as much while nothing was changed (spec B3)."""
    found = {}
    for metric in metrics:
        if metric.week_before is not None:
            relative, _ = stats.change(metric.week_before, metric.reading)
            if relative is not None:
                found[metric.name] = abs(relative)
    return found


def drift(metrics: Sequence[MetricBaseline], *, required: Iterable[str], max_drift_pct: float) -> Judgement:
    """Whether the window agrees with the same hours of the week before (spec B1, P1).

    A metric may move by `max_drift_pct` or by its own within-window spread, whichever is larger: what it does
    within a day is no drift between weeks.

    Args:
        required: metrics that must be comparable; unknown ones make the outcome NO_DATA.
    """
    by_name = {metric.name: metric for metric in metrics}
    reasons = []
    for name in required:
        metric = by_name.get(name)
        if metric is None:
            reasons.append(_reason(name, Outcome.NO_DATA, f"the baseline holds no {name}"))
            continue
        before = metric.week_before or Reading.unknown("no reading of the week before")
        unknown = next((r for r in (metric.reading, before) if r.value is None), None)
        if unknown is not None:
            text = f"{name} cannot be compared with the week before: {unknown.cause}"
            reasons.append(_reason(name, Outcome.NO_DATA, text))
            continue
        change, _ = stats.change(before, metric.reading)
        limit = max(max_drift_pct, metric.spread_pct or 0.0)
        if change is None:
            text = f"{name} went from {before.text()} to {metric.reading.text()}"
            reasons.append(_reason(name, Outcome.FAIL, text, metric.reading.value, 0.0))
            continue
        outcome = Outcome.PASS if abs(change) <= limit else Outcome.FAIL
        text = (
            f"{name} is {metric.reading.text()}, {change:+.1f} % against {before.text()} a week before; "
            f"{limit:.1f} % are allowed"
        )
        reasons.append(_reason(name, outcome, text, change, limit))
    return judgement(reasons)


def _reason(
    rule: str, outcome: Outcome, text: str, observed: float | None = None, limit: float | None = None
) -> Reason:
    return Reason(rule=rule, outcome=outcome, text=text, observed=observed, limit=limit, unit="%")


def noise_floors(
    runs_a: Sequence[Mapping[str, Reading]], runs_b: Sequence[Mapping[str, Reading]]
) -> tuple[NoiseFloor, ...]:
    """The smallest difference of each metric that may be called one, from A/A runs (spec B4).

    All runs are of one configuration, so the whole range over both sides was made by noise alone:
    (max - min) / median. This is larger than the mean difference of the pairs, and is meant to be. A metric
    that is unknown in any run has no floor.

    Args:
        runs_a: metrics of the runs of one side, by name.
        runs_b: those of the other side; interleaved with the first.
    """
    pairs = min(len(runs_a), len(runs_b))
    runs = [*runs_a, *runs_b]
    names = sorted({name for run in runs for name in run})
    floors = []
    for name in names:
        readings = [run.get(name) for run in runs]
        values = [r.value for r in readings if r is not None and r.value is not None]
        if pairs == 0 or len(values) < len(runs):
            floors.append(NoiseFloor(metric=name, floor_pct=None, pairs=pairs))
            continue
        floors.append(
            NoiseFloor(
                metric=name,
                floor_pct=stats.spread_pct(values),
                floor_abs=max(values) - min(values),
                pairs=pairs,
            )
        )
    return tuple(floors)


def cost_per_million_tokens(throughput_per_accelerator: Reading, price_per_accelerator_hour: float) -> Reading:
    """Currency units per million generated tokens: price / (tok/s * 3600) * 1e6 (spec B2).

    Args:
        throughput_per_accelerator: tok/s of one accelerator.
        price_per_accelerator_hour: currency units.
    """
    unit = "per million tokens"
    source = f"{price_per_accelerator_hour:g} an hour / ({throughput_per_accelerator.source})"
    if throughput_per_accelerator.value is None:
        return Reading.unknown(throughput_per_accelerator.cause, unit=unit, source=source)
    if throughput_per_accelerator.value <= 0:
        return Reading.unknown("no token was generated, so none has a price", unit=unit, source=source)
    cost = price_per_accelerator_hour / (throughput_per_accelerator.value * 3600) * 1e6
    return Reading.of(
        cost,
        unit,
        source=source,
        mark=throughput_per_accelerator.mark,
        cause=throughput_per_accelerator.cause,
    )


def error_rate_pct(failed: Reading, requests: Reading) -> Reading:
    """Failed requests in per cent of all; unknown without requests: no error among none says nothing."""
    for part in (failed, requests):
        if part.value is None:
            return Reading.unknown(part.cause, unit="%", source=part.source)
    if not requests.value:
        return Reading.unknown("idle: no request in the window", unit="%", source=requests.source)
    source = f"({failed.source}) / ({requests.source})"
    return Reading.of((failed.value or 0) / requests.value * 100, "%", source=source, samples=requests.value)


def baseline_report(
    *,
    target: Target,
    campaign: str,
    window: Window,
    config: ServingConfig,
    criteria_hash: str,
    metrics: Sequence[MetricBaseline],
    price_per_accelerator_hour: float,
    accelerators: int = 1,
    floors: Sequence[NoiseFloor] = (),
    sample_key: str = "",
    notes: Sequence[str] = (),
) -> BaselineReport:
    """Stage 1's result. Adds cost_per_million_tokens where throughput_per_gpu is there and cost is not."""
    complete = list(metrics)
    by_name = {metric.name: metric for metric in metrics}
    throughput = by_name.get("throughput_per_gpu")
    if throughput is not None and "cost_per_million_tokens" not in by_name:
        complete.append(_cost_baseline(throughput, price_per_accelerator_hour))
    unknown = [f"{m.name} is unknown: {m.reading.cause}" for m in complete if m.reading.value is None]
    return BaselineReport(
        target=target,
        campaign=campaign,
        window=window,
        config=config,
        config_hash=config.config_hash(),
        criteria_hash=criteria_hash,
        metrics=tuple(complete),
        accelerators=accelerators,
        noise_floors=tuple(floors),
        sample_key=sample_key,
        notes=(*notes, *unknown),
    )


def _cost_baseline(throughput: MetricBaseline, price: float) -> MetricBaseline:
    before = throughput.week_before
    return metric_baseline(
        "cost_per_million_tokens",
        cost_per_million_tokens(throughput.reading, price),
        slices=[cost_per_million_tokens(reading, price) for reading in throughput.slices],
        week_before=None if before is None else cost_per_million_tokens(before, price),
    )
