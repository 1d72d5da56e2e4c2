"""Data-quality gates around stage 4: the sample that it replays, the runs that it judges. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infra.quality.suite import GateSuite, filled, not_blank, one_of
from tasks.sandbox.records import RunReadings
from tasks.shared.traffic_gate import sample_rows, traffic_suite

__all__ = ["run_rows", "run_suite_of", "sample_rows", "traffic_suite"]


def run_rows(runs: Iterable[RunReadings], required: Sequence[str]) -> list[dict[str, object]]:
    """One row a run; `complete` is false for a valid run that lacks a required reading."""
    rows: list[dict[str, object]] = []
    for run in runs:
        missing = [name for name in required if name not in run.metrics or run.metrics[name].value is None]
        rows.append(
            {
                "side": run.side,
                "workload": run.workload,
                "group": f"{run.side}/{run.workload}",
                "valid": run.valid,
                "explained": run.valid or bool(run.invalid_reasons),
                "complete": not run.valid or not missing,
                "missing": ", ".join(missing) or "none",
            }
        )
    return rows


def run_suite_of(*, min_runs_per_group: int, workloads: Sequence[str]) -> GateSuite:
    """Both sides of every workload have runs enough, each valid run is complete, each other one says why."""
    groups = {f"{side}/{workload}": min_runs_per_group for side in ("baseline", "candidate") for workload in workloads}
    return GateSuite(
        name="trial runs",
        min_rows=max(1, sum(groups.values())),
        bucket_column="group",
        min_rows_per_bucket=groups,
        expectations=(
            filled("group"),
            one_of("side", ("baseline", "candidate")),
            one_of("workload", tuple(workloads)),
            one_of("explained", (True,)),
            one_of("complete", (True,)),
            not_blank("missing"),
        ),
    )
