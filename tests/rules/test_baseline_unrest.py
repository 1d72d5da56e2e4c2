"""A baseline over a window in which production was not one thing starts no campaign (spec B1, P1)."""

from __future__ import annotations

import pytest

from infra.readings import Reading
from tasks.baseline.records import BaselineReport
from tasks.baseline.rules import baseline_report, metric_baseline, week_to_week_pct
from tasks.baseline.steps import stop_on_unrest
from tasks.shared.records import Window
from tasks.shared.stops import PreconditionFailed
from tests.rules.trial_records import BASELINE, DEMO, PRODUCTION, TARGET


def report(*, restarts: float = 0.0, p99: float = 1000.0, week_before: bool = True) -> BaselineReport:
    now = {
        "throughput_per_gpu": Reading.of(100.0, "tok/s"),
        "p99_latency": Reading.of(p99, "ms"),
        "oom_count": Reading.of(restarts, "count"),
    }
    before = {
        "throughput_per_gpu": Reading.of(101.0, "tok/s"),
        "p99_latency": Reading.of(1000.0, "ms"),
        "oom_count": Reading.of(0.0, "count"),
    }
    return baseline_report(
        target=TARGET,
        campaign="c",
        window=Window(start_s=0, end_s=86_400),
        config=BASELINE,
        criteria_hash="0" * 64,
        metrics=[metric_baseline(n, r, week_before=before[n] if week_before else None) for n, r in now.items()],
        price_per_accelerator_hour=2.5,
    )


def test_P1_a_steady_week_starts() -> None:
    stop_on_unrest(report(), PRODUCTION)


@pytest.mark.parametrize(
    ("words", "unrest"),
    [
        ("restarted 2 times", {"restarts": 2.0}),
        ("p99_latency is 1,300 ms", {"p99": 1300.0}),
        ("cannot be compared with the week before", {"week_before": False}),
    ],
)
def test_B1_P1_restarts_drift_and_a_missing_week_stop_a_campaign(words: str, unrest: dict[str, float]) -> None:
    with pytest.raises(PreconditionFailed) as stopped:
        stop_on_unrest(report(**unrest), PRODUCTION)  # type: ignore[arg-type]
    assert words in str(stopped.value)


def test_P1_the_demo_compares_with_no_week_and_still_looks_for_restarts() -> None:
    stop_on_unrest(report(week_before=False), DEMO)
    with pytest.raises(PreconditionFailed, match="restarted 1 times"):
        stop_on_unrest(report(restarts=1.0, week_before=False), DEMO)


def test_B3_production_differs_from_week_to_week_by_so_much() -> None:
    found = week_to_week_pct(report(p99=900.0).metrics)
    assert found["throughput_per_gpu"] == pytest.approx(100 / 101)
    assert found["p99_latency"] == pytest.approx(10.0)
    assert week_to_week_pct(report(week_before=False).metrics) == {}
