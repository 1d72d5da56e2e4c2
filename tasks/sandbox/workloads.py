"""Under which loads a trial is measured, and whether a win holds on each of them (spec V4, V5, V11). Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from infra.bench.workload import STRATUM_OF, Workload, WorkloadPlan
from infra.engine.config import ServingConfig
from infra.errors import BadInput
from infra.replay.records import ReplayLimits, ReplayOptions
from tasks.sandbox.comparison import THROUGHPUT_OF
from tasks.sandbox.records import MetricComparison, RunReadings
from tasks.shared.paired import Effect, effect_of
from tasks.shared.records import Outcome, Reading, Reason, SamplingPolicy

MAX_DISPATCH_DELAY_P99_MS = 50.0
PEAK_CONCURRENCY = "peak_concurrency"
REQUEST_LIMIT_S = 180.0
BETWEEN_SPANS_S = 30.0
"""Most that a change of slots and the engines' counters may take."""
LONGEST_RECORDED_S = 3600.0
"""Feedback comes in minutes (spec V10): a trial whose recorded load lasts longer than this is no plan."""

NAMES: Mapping[Workload, str] = {
    "saturating": "the mix",
    "short_prompts": "short prompts",
    "long_prompts": "long prompts",
}


def slots_of(*configs: ServingConfig) -> int | None:
    """The largest number of sequences that one of the engines takes at a time; None where none says, since the
    engine's default depends on the machine."""
    found = [config.args.get("max_num_seqs") for config in configs]
    return max((value for value in found if isinstance(value, int) and not isinstance(value, bool)), default=None)


def plans(
    measuring: SamplingPolicy,
    *,
    time_scale: float,
    slots: int | None,
    strata: Collection[str],
    duration_s: float = 0.0,
) -> tuple[WorkloadPlan, ...]:
    """The loads under which both sides are measured.

    `recorded`: the recorded arrivals. `saturating`: the whole mix at the fixed saturating load. `short_prompts`: that
    stratum alone at twice the load, and with no fewer requests at once than an engine takes, so that memory is seen
    at its peak. `long_prompts`: that stratum alone at an eighth of the load.

    Args:
        time_scale: recorded gaps are multiplied by it.
        slots: of `slots_of` both sides.
        duration_s: of the sample, from its first to its last arrival.
        strata: those that the sample holds; a workload without requests is left out, and is then missing.
    """
    limits = ReplayLimits(max_dispatch_delay_p99_ms=MAX_DISPATCH_DELAY_P99_MS, max_error_rate=1.0)

    def options(concurrency: int | None) -> ReplayOptions:
        return ReplayOptions(
            mode="open" if concurrency is None else "closed",
            concurrency=concurrency,
            time_scale=time_scale if concurrency is None else 1.0,
            warmup=measuring.warmup_requests,
            limits=limits,
            timeout_s=REQUEST_LIMIT_S,
        )

    def limit_s(concurrency: int | None) -> float:
        """Warm-up and start, and the recorded time, or a closed loop's spans by turns with all that lies between."""
        loop_s = 4 * measuring.most_pairs * (measuring.span_s + BETWEEN_SPANS_S)
        return 600.0 + (duration_s * time_scale if concurrency is None else loop_s)

    at = measuring.saturating_concurrency
    concurrency: dict[Workload, int] = {"short_prompts": max(2 * at, slots or 0), "long_prompts": max(1, at // 8)}
    loads: list[tuple[Workload, int | None]] = [("saturating", at), ("recorded", None)]
    loads += [(name, concurrency[name]) for name in measuring.workloads if STRATUM_OF[name] in strata]
    return tuple(WorkloadPlan(workload=name, options=options(n), limit_s=limit_s(n)) for name, n in loads)


def refuse_endless(duration_s: float, time_scale: float) -> None:
    """Refuse recorded arrivals that would be replayed for hours.

    Raises:
        BadInput: with what to give instead.
    """
    if duration_s * time_scale > LONGEST_RECORDED_S:
        raise BadInput(
            f"the recorded load would last {duration_s * time_scale:,.0f} s, {LONGEST_RECORDED_S:,.0f} s are the most",
            remedy="Give the campaign a `sample_window` of an hour or less (a stretch of the baseline's window, with "
            "its own peak) and a `held_out_window`",
        )


def load_specific(comparisons: Sequence[MetricComparison], measuring: SamplingPolicy) -> tuple[Reason, ...]:
    """Whether a win under one load is paid for under another (spec V4): FAIL, and the text says which.

    NO_DATA where a workload that the criteria name was not measured; INCONCLUSIVE where a loss there cannot be excluded
    yet. Nothing where the criteria name no workload beside the mix, or the mix is not better: it is refused anyway.
    """
    by_name = {c.metric: c for c in comparisons}
    mix = by_name.get(THROUGHPUT_OF["saturating"])
    gain_pct = measuring.smallest_gain_pct
    if not measuring.workloads or mix is None or effect_of(mix.estimate, gain_pct) != "effective":
        return ()
    effects: dict[Workload, Effect] = {}
    reasons: list[Reason] = []
    sizes = [f"{NAMES['saturating']} {mix.estimate.text() if mix.estimate else ''}"]
    for load in measuring.workloads:
        found = by_name.get(THROUGHPUT_OF[load])
        if found is None or found.estimate is None or not (found.baseline.judges and found.candidate.judges):
            missing = found.candidate if found is not None else Reading.unknown("the sample holds none")
            text = f"throughput on {NAMES[load]} is {missing.text()}"
            reasons.append(Reason(rule="load_specific", outcome=Outcome.NO_DATA, text=text))
            continue
        effects[load] = effect_of(found.estimate, gain_pct)
        sizes.append(f"{NAMES[load]} {found.estimate.text()}")
        lost = found.estimate.low is None or found.estimate.low < -math.log1p(gain_pct / 100)
        if effects[load] == "unstable" and lost:
            text = f"throughput on {NAMES[load]} {found.estimate.text()}: a loss cannot be excluded"
            reasons.append(Reason(rule="load_specific", outcome=Outcome.INCONCLUSIVE, text=text))
    if "regression" in effects.values():
        text = f"load-specific, a win under one load that another pays for: throughput on {', on '.join(sizes)}"
        return (Reason(rule="load_specific", outcome=Outcome.FAIL, text=text), *reasons)
    if not reasons:
        text = f"no load pays for another: throughput on {', on '.join(sizes)}"
        return (Reason(rule="load_specific", outcome=Outcome.PASS, text=text),)
    return tuple(reasons)


def memory_at_peak(readings: Sequence[RunReadings], candidate: ServingConfig) -> tuple[Reason, ...]:
    """Whether the candidate's memory was read, and read with as many requests under way as it takes (spec V5).

    Nothing to object to gives nothing. A cache that grows with concurrency fits until its peak comes.
    """
    mine = [run.metrics for run in readings if run.side == "candidate"]
    lacking = next((r for m in mine if (r := m.get("peak_memory")) is None or r.value is None), None)
    if not mine or lacking is not None or any("peak_memory" not in m for m in mine):
        text = "peak memory is a required reading, and " + (lacking.cause if lacking is not None else "no run has it")
        return (Reason(rule="peak_memory", outcome=Outcome.NO_DATA, text=text),)
    slots = slots_of(candidate)
    peak = max((r.value for m in mine if (r := m.get(PEAK_CONCURRENCY)) and r.value is not None), default=0.0)
    if slots is None:
        text = (
            "the configuration does not say how many sequences the engine takes at a time (max_num_seqs), so nobody "
            "knows whether memory was seen at its peak; name it"
        )
        return (Reason(rule=PEAK_CONCURRENCY, outcome=Outcome.INCONCLUSIVE, text=text),)
    if peak >= slots:
        return ()
    return (
        Reason(
            rule=PEAK_CONCURRENCY,
            outcome=Outcome.INCONCLUSIVE,
            observed=peak,
            limit=float(slots),
            unit="requests",
            text=f"at most {peak:.0f} requests were under way at once and the engine takes {slots}: memory was not "
            "seen at its peak; name the workload short_prompts, with a sample of more short prompts than that",
        ),
    )
