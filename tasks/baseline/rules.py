"""Stage 1's decisions: spread, drift, what the sandbox can tell, cost. Pure.

Unknown stays unknown: nothing here turns a reading that could not be taken into a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from infra.engine.config import ServingConfig
from tasks.baseline.records import BaselineReport, MetricBaseline
from tasks.shared import statistics as stats
from tasks.shared.outcomes import judgement
from tasks.shared.paired import Estimate
from tasks.shared.records import Criteria, Judgement, Outcome, Reading, Reason, SamplingPolicy, Target, Window


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


def judge_calibration(found: Estimate | None, planned: int | None, measuring: SamplingPolicy) -> Judgement:
    """Whether a campaign may be measured by this sandbox: two engines of one configuration must not differ, and the
    pairs that the criteria's target needs must be in their budget.

    Args:
        found: of the A/A measurement.
        planned: pairs after which a gain of the target is told; None: more than anyone would wait for.
    """
    if found is None or found.low_pct is None or found.high_pct is None:
        text = "two engines of one configuration gave no three pairs"
        return judgement([Reason(rule="a_a", outcome=Outcome.NO_DATA, text=text)])
    reasons = []
    fair = found.low_pct <= 0 <= found.high_pct
    text = f"two engines of one configuration differ by {found.text()}" + ("" if fair else ": one side is favoured")
    reasons.append(Reason(rule="a_a", outcome=Outcome.PASS if fair else Outcome.FAIL, text=text))
    enough = planned is not None and planned <= measuring.most_pairs
    needed = "more pairs than can be made" if planned is None else f"{planned} pairs"
    text = f"the target needs {needed} here, and measuring.most_pairs is {measuring.most_pairs}"
    reasons.append(Reason(rule="plan", outcome=Outcome.PASS if enough else Outcome.FAIL, text=text))
    return judgement(reasons)


def target_pct(criteria: Criteria) -> float:
    """The gain in throughput that reaches the nearest target, %. Cost falls as throughput rises; a target on another
    metric is counted as it is."""
    return min(math.expm1(abs(math.log1p(max(m.target_pct, -99.0) / 100))) * 100 for m in criteria.primary)


def calibration_sentence(found: Estimate, design: str, planned: int | None, pair_s: float, campaign_s: float) -> str:
    """What this machine can tell, how many pairs a trial takes, how long the campaign will take."""
    noise = "unknown" if found.sd is None else f"{math.expm1(found.sd) * 100:.1f} %"
    pairs = "more pairs than anyone can wait for" if planned is None else f"{planned} pairs, {planned * pair_s:.0f} s"
    return (
        f"measured as a {design}, a pair repeats within {noise} here and equal engines differ by {found.text()}: "
        f"a trial takes {pairs}; all trials {campaign_s / 60:.0f} min at most, less where effects are large"
    )


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
