"""Production's numbers over one window, from Prometheus only (spec B1). Read by stage 1 and after a promotion."""

from __future__ import annotations

from collections.abc import Callable

from infra.connect import metrics_settings
from infra.metrics.failures import failed_requests
from infra.metrics.reader import MetricsReader, Selector
from infra.metrics.saturation import saturated_throughput
from infra.metrics.window import MetricsWindow
from tasks.baseline.records import MetricBaseline
from tasks.baseline.rules import error_rate_pct, metric_baseline
from tasks.shared.records import Criteria, Reading, Window

SLICES = 3
WEEK_S = 7 * 86_400.0
MIN_SATURATED_S = 5.0


def open_window(role: str, window: Window) -> MetricsWindow:
    """The engines of one role over a window."""
    settings = metrics_settings()
    return MetricsWindow(
        MetricsReader(settings.url, settings.timeout_s), Selector.role(role), window.start_s, window.end_s
    )


def metric_readers(criteria: Criteria, accelerators: int) -> dict[str, Callable[[MetricsWindow], Reading]]:
    """How each production metric is read from a window; `accelerators` is what one replica has."""
    waiting = criteria.windows.saturated_waiting
    fewest = criteria.windows.min_latency_samples
    return {
        "throughput_per_gpu": lambda w: saturated_throughput(
            w, waiting=waiting, min_saturated_s=MIN_SATURATED_S, accelerators_per_target=accelerators
        ),
        "p50_latency": lambda w: w.quantile("e2e_latency", 0.5, min_samples=fewest),
        "p90_latency": lambda w: w.quantile("e2e_latency", 0.9, min_samples=fewest),
        "p99_latency": lambda w: w.quantile("e2e_latency", 0.99, min_samples=fewest),
        "ttft_p50": lambda w: w.quantile("ttft", 0.5, min_samples=fewest),
        "ttft_p90": lambda w: w.quantile("ttft", 0.9, min_samples=fewest),
        "ttft_p99": lambda w: w.quantile("ttft", 0.99, min_samples=fewest),
        "tpot_p50": lambda w: w.quantile("tpot", 0.5, min_samples=fewest),
        "tpot_p90": lambda w: w.quantile("tpot", 0.9, min_samples=fewest),
        "tpot_p99": lambda w: w.quantile("tpot", 0.99, min_samples=fewest),
        "queue_p99": lambda w: w.quantile("queue_time", 0.99, min_samples=fewest),
        "error_rate": lambda w: error_rate_pct(*failed_requests(w)),
        "oom_count": lambda w: w.restarts(),
        "kv_cache_max": lambda w: w.gauge_max("kv_cache_usage"),
        "batch_avg": lambda w: w.gauge_avg("running"),
        "requests": lambda w: w.increase("request_success"),
        "throughput_all_seconds": lambda w: w.throughput(accelerators_per_target=accelerators),
    }


def production_metrics(
    role: str,
    window: Window,
    criteria: Criteria,
    accelerators: int,
) -> tuple[MetricBaseline, ...]:
    """Every metric with its spread over equal parts of the window, and the week before where policy asks for it.

    Args:
        accelerators: accelerators of one replica.
    """
    whole = open_window(role, window)
    parts = whole.slices(SLICES)
    before = whole.earlier(WEEK_S) if criteria.windows.compare_with_week_before else None
    return tuple(
        metric_baseline(
            name,
            read(whole),
            slices=[read(part) for part in parts],
            week_before=read(before) if before is not None else None,
        )
        for name, read in metric_readers(criteria, accelerators).items()
    )
