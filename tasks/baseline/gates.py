"""Data-quality gates of stage 1: the sample that it measures with, the report it hands on. Pure data."""

from __future__ import annotations

from collections.abc import Sequence

from infra.quality.suite import GateSuite, between, contains_all, filled, not_blank, one_of, unique
from tasks.baseline.records import BaselineReport
from tasks.shared.traffic_gate import sample_rows, traffic_suite

__all__ = ["baseline_rows", "baseline_suite", "sample_rows", "traffic_suite"]


def baseline_rows(report: BaselineReport, required: Sequence[str]) -> list[dict[str, object]]:
    """One row a metric; `usable` is what a required one must be: known."""
    return [
        {
            "name": metric.name,
            "status": metric.reading.status,
            "value": metric.reading.value,
            "unit": metric.reading.unit,
            "required": metric.name in required,
            "usable": metric.reading.value is not None or metric.name not in required,
            "negative": metric.reading.value is not None and metric.reading.value < 0,
            "window_s": report.window.end_s - report.window.start_s,
        }
        for metric in report.metrics
    ]


def baseline_suite(required: Sequence[str], *, min_window_s: float = 0.0) -> GateSuite:
    """Before stage 2: every metric that the criteria name is there and known.

    Args:
        required: names of primary and guard metrics.
        min_window_s: shortest window that is a baseline.
    """
    return GateSuite(
        name="baseline report",
        min_rows=max(1, len(set(required))),
        expectations=(
            filled("name"),
            unique("name"),
            contains_all("name", tuple(required)),
            one_of("status", ("value", "zero", "unknown")),
            one_of("usable", (True,)),
            one_of("negative", (False,)),
            not_blank("unit"),
            between("window_s", min_window_s, None, strict_minimum=min_window_s == 0),
        ),
    )
