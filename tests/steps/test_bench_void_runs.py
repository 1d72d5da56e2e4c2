"""A run that the machine disturbed is given out, counted for nothing and measured again (spec V3); no engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.bench import conditions, measure
from infra.bench.conditions import ConditionsWatch, RunConditions
from infra.bench.measure import MOST_AGAIN, Served, SideFailed, measure_pair
from infra.bench.workload import WorkloadPlan
from infra.errors import RatchetError, Unreachable
from infra.replay.process import ReplayTimedOut
from infra.replay.records import ReplayOptions
from tasks.sandbox.judging import classify
from tasks.sandbox.steps import _how_it_died
from tasks.shared.records import OutcomeClass
from tests.rules.test_sandbox_search import measured
from tests.rules.trial_records import PRODUCTION

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


def test_V3_throttling_is_the_sum_of_what_cores_and_package_count(tmp_path: Path) -> None:
    assert conditions.throttle_count(tmp_path) is None
    for core, count in (("cpu0", 3), ("cpu1", 4)):
        folder = tmp_path / "devices/system/cpu" / core / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    assert conditions.throttle_count(tmp_path) == 7


def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str, fault: Exception) -> list[Any]:
    def run(_served: Served, side: str, *_: Any, **__: Any) -> Any:
        if side == at:
            raise fault
        return measured(side)

    monkeypatch.setattr(measure, "measure_run", run)
    served = Served(root_url="http://127.0.0.1:1", model="m", pid=1)
    return list(measure_pair(served, served, [PLAN], tmp_path / "s.parquet", tmp_path, client_cores=(0,)))


@pytest.mark.parametrize("fault", [ReplayTimedOut("it took longer than 60 s"), Unreachable("no answer")])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_V8_a_run_that_does_not_end_says_whose_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, side: str, fault: RatchetError
) -> None:
    with pytest.raises(SideFailed) as failed:
        failing(monkeypatch, tmp_path, side, fault)
    assert failed.value.side == side
    assert str(failed.value).startswith(f"{side}: ")


class LivingBench:
    def candidate_death(self) -> None:
        return None


def test_V8_a_candidate_that_lives_and_does_not_answer_costs_its_trial_and_not_the_campaign() -> None:
    silent = SideFailed("candidate", ReplayTimedOut("it took longer than 60 s"))
    assert _how_it_died(LivingBench(), silent) == ("silent", "candidate: it took longer than 60 s")  # type: ignore[arg-type]
    assert classify(engine_outcome="silent", comparisons=(), criteria=PRODUCTION, kind="single") is OutcomeClass.NOT_RUN
    for fault in (SideFailed("baseline", Unreachable("no answer")), Unreachable("S3 is away")):
        with pytest.raises(type(fault)):
            _how_it_died(LivingBench(), fault)  # type: ignore[arg-type]
