"""A run that the machine disturbed is given out, counted for nothing and measured again (spec V3); no engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.bench import conditions, measure
from infra.bench.conditions import ConditionsWatch, RunConditions
from infra.bench.measure import MOST_AGAIN, Served, measure_pair
from infra.bench.workload import WorkloadPlan
from infra.replay.records import ReplayOptions
from tests.rules.test_sandbox_search import measured

PLAN = WorkloadPlan(workload="saturating", options=ReplayOptions(mode="closed", concurrency=4), repeats=2)


def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stolen: list[float]) -> list[Any]:
    asked = iter([*stolen, *[0.0] * 20])

    def run(_served: Served, side: str, plan: WorkloadPlan, repeat: int, _sample: Path, out: Path, **_: Any) -> Any:
        conditions = RunConditions(steal_pct=next(asked), foreign_cpu_pct=0.0, duration_s=1.0)
        found = measured(side)
        return found.model_copy(update={"repeat": repeat, "conditions": conditions, "requests_path": out})

    monkeypatch.setattr(measure, "measure_run", run)
    served = Served(root_url="http://127.0.0.1:1", model="m", pid=1)
    return list(
        measure_pair(
            served,
            served,
            [PLAN],
            tmp_path / "s.parquet",
            tmp_path,
            client_cores=(0,),
            void=lambda r: (r.conditions.steal_pct or 0) > 8,
        )
    )


def test_V3_a_void_run_is_measured_again_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = pair(monkeypatch, tmp_path, [0.0, 30.0, 0.0])
    assert [(r.side, r.repeat, r.conditions.steal_pct) for r in runs] == [
        ("baseline", 0, 0.0),
        ("candidate", 0, 30.0),
        ("candidate", 0, 0.0),
        ("candidate", 1, 0.0),
        ("baseline", 1, 0.0),
    ]
    assert len({(r.side, r.repeat, r.requests_path) for r in runs}) == 5  # no run overwrites another


def test_V3_a_machine_that_stays_disturbed_does_not_hold_a_trial_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = pair(monkeypatch, tmp_path, [30.0] * 20)
    assert len(runs) == 4 * (1 + MOST_AGAIN)


def test_V3_steal_is_read_of_the_core_that_lost_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([[(0.0, 0.0)], [(0.0, 6.0)]])

    def cores(*, percpu: bool) -> list[SimpleNamespace]:
        assert percpu
        return [SimpleNamespace(steal=s) for s in next(now)[0]]

    clock = iter([100.0, 110.0])
    monkeypatch.setattr(conditions.psutil, "cpu_times", cores)
    monkeypatch.setattr(conditions.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(conditions, "_process_seconds", dict)
    assert ConditionsWatch([]).finish().steal_pct == pytest.approx(60.0)
