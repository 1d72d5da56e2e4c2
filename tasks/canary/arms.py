"""Reads both arms over the same window: engines and proxy, from Prometheus (spec R4, R6)."""

from __future__ import annotations

from infra.connect import metrics_settings
from infra.metrics.failures import failed_requests
from infra.metrics.reader import MetricsReader, Selector
from infra.metrics.window import MetricsWindow
from tasks.canary.records import ArmReadings, CanaryReadings
from tasks.shared.records import Reading

SLOW_FACTOR = 1.05
"""P99 is guarded as the share of requests slower than 1.05 x the baseline's (spec R1)."""


def read_arm(
    reader: MetricsReader, role: str, start_s: float, end_s: float, baseline_p99_ms: float | None
) -> ArmReadings:
    """One arm over [start_s, end_s]; never raises for what Prometheus says."""
    engine = MetricsWindow(reader, Selector.role(role), start_s, end_s)
    errors, requests = failed_requests(engine)
    up = engine.up()
    slow, bound = Reading.unknown("the baseline's P99 is unknown", unit="requests"), None
    if baseline_p99_ms is not None:
        counted = engine.slower_than_ms("e2e_latency", baseline_p99_ms * SLOW_FACTOR)
        slow, bound = counted.slow, counted.bound_ms
    load = requests
    if requests.value is not None:
        load = Reading.of(requests.value / max(1e-9, end_s - start_s), "requests/s", source=requests.source)
    return ArmReadings(
        requests=requests,
        load_per_replica=load,
        errors=errors,
        slow=slow,
        slow_bound_ms=bound,
        ttft_p99=engine.quantile("ttft", 0.99),
        tpot_p99=engine.quantile("tpot", 0.99),
        latency_p99=engine.quantile("e2e_latency", 0.99),
        oom_count=engine.restarts(),
        engine_up=Reading.of(
            1.0 if up.value is not None and up.value > 0 else up.value, "engines", source=up.source, cause=up.cause
        ),
    )


def read_both(start_s: float, end_s: float, baseline_p99_ms: float | None) -> CanaryReadings:
    """Stable and canary over one window."""
    s = metrics_settings()
    reader = MetricsReader(s.url, s.timeout_s)
    return CanaryReadings(
        start_s=start_s,
        end_s=end_s,
        stable=read_arm(reader, "stable", start_s, end_s, baseline_p99_ms),
        canary=read_arm(reader, "canary", start_s, end_s, baseline_p99_ms),
    )
