"""What else the machine did, and whose fault it is when a side fails; no engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.bench import conditions
from infra.bench.conditions import ConditionsWatch
from infra.bench.measure import SideFailed
from infra.errors import Unreachable
from infra.replay.process import ReplayTimedOut
from tasks.sandbox.judging import classify
from tasks.sandbox.steps import _how_it_died
from tasks.shared.records import OutcomeClass
from tests.rules.trial_records import PRODUCTION


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
