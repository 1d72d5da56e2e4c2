"""Spans of two engines at once, against stubs whose speed depends on the slot that they stand on."""

from __future__ import annotations

import math
import os
import time
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.bench.duet import Duet, orders_of
from infra.bench.measure import Served, SideFailed
from infra.bench.workload import WorkloadPlan
from infra.replay.records import ReplayOptions
from infra.sampling.sample import SampleEntry, make_sample, save_sample, strata_from_bounds
from infra.settings.sandbox import SandboxSettings
from tasks.shared.paired import estimate, log_ratio
from tests.fakes.stub_llm import StubLLM, StubTiming

CLOSED = WorkloadPlan(workload="saturating", options=ReplayOptions(mode="closed", concurrency=4, warmup=2), limit_s=60)
RECORDED = WorkloadPlan(workload="recorded", options=ReplayOptions(time_scale=0.1), limit_s=60)


class Slots:
    """Two slots, the second one 1.6 times as slow; a candidate that needs `factor` of the baseline's time."""

    def __init__(self, design: str, factor: float) -> None:
        self.design = design
        self.factor = factor
        self.baseline = StubLLM(StubTiming(first_token_s=0.02, token_gap_s=0.01, slots=2))
        self.candidate = StubLLM(StubTiming(first_token_s=0.02, token_gap_s=0.01, slots=2))
        self.orders: list[str] = []
        self.held: list[str | None] = []

    def place(self, order: str) -> None:
        self.orders.append(order)
        slow = 1.6 if self.design == "duet" else 1.0
        for stub, on_second, factor in (
            (self.baseline, order == "BA", 1.0),
            (self.candidate, order == "AB", self.factor),
        ):
            stub.timing.token_gap_s = 0.01 * factor * (slow if on_second else 1.0)
            stub.timing.first_token_s = 0.02 * factor * (slow if on_second else 1.0)

    def alone(self, side: str | None) -> None:
        self.held.append(side)

    def served(self) -> tuple[Served, Served]:
        one, two = (
            Served(root_url=s.base_url.removesuffix("/v1"), model="stub", pid=os.getpid())
            for s in (self.baseline, self.candidate)
        )
        return one, two


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    entries = [
        SampleEntry(
            request_id=f"r{i}",
            arrival_s=float(i),
            prompt_tokens=8,
            output_tokens=6,
            messages=({"role": "user", "content": f"a{i} b{i} c{i} d{i} e{i} f{i} g{i} h{i}"},),
        )
        for i in range(8)
    ]
    save_sample(make_sample(entries, strata_from_bounds(10, 100)), tmp_path / "s.parquet")
    return tmp_path / "s.parquet"


@pytest.mark.parametrize("design", ["duet", "slices"])
def test_a_slow_slot_cancels_in_a_pair(design: str, sample: Path, tmp_path: Path) -> None:
    slots = Slots(design, 1 / 1.5)
    with slots.baseline, slots.candidate:
        pairs = list(islice(Duet(slots, *slots.served(), tmp_path).closed(sample, CLOSED, 1.0), 3))
    values = [log_ratio([(s.baseline.tokens_per_s, s.candidate.tokens_per_s) for s in pair]) for pair in pairs]
    found = estimate([v for v in values if v is not None])
    assert found is not None
    assert found.mean == pytest.approx(math.log(1.5), abs=0.25), "the slot's own factor of 1.6 did not cancel"
    assert slots.orders[:6] == ["AB", "BA", "BA", "AB", "AB", "BA"]
    assert all(s.order == order for i, pair in enumerate(pairs) for s, order in zip(pair, orders_of(i), strict=True))
    assert (set(slots.held) >= {"baseline", "candidate"}) is (design == "slices")
    assert slots.held[-1] is None, "both sides run again when it ends"
    assert all(s.candidate.failed == s.baseline.failed == 0 for pair in pairs for s in pair)


def test_LG5_no_private_text_is_sent_twice_to_one_engine(sample: Path, tmp_path: Path) -> None:
    slots = Slots("duet", 1.0)
    with slots.baseline, slots.candidate:
        duet = Duet(slots, *slots.served(), tmp_path)
        list(islice(duet.closed(sample, CLOSED, 0.5), 1))
        list(islice(duet.recorded(sample, RECORDED), 2))
    for stub in (slots.baseline, slots.candidate):
        texts = [body["messages"][0]["content"] for body in stub.bodies]
        assert len(texts) == len(set(texts)) > 40


def test_recorded_load_is_served_by_both_sides_at_once(sample: Path, tmp_path: Path) -> None:
    slots = Slots("duet", 1.0)
    with slots.baseline, slots.candidate:
        ((one, two),) = islice(Duet(slots, *slots.served(), tmp_path).recorded(sample, RECORDED), 1)
    assert (one.order, two.order) == ("AB", "BA")
    for span in (one, two):
        starts = [span.baseline.summary.started_epoch_s, span.candidate.summary.started_epoch_s]
        assert span.baseline.summary.ok == span.candidate.summary.ok == 8
        assert max(starts) < min(span.baseline.summary.ended_epoch_s, span.candidate.summary.ended_epoch_s)


def test_EN6_a_side_that_is_not_there_is_named_at_once(sample: Path, tmp_path: Path) -> None:
    slots = Slots("duet", 1.0)
    with slots.baseline:
        here = Served(root_url=slots.baseline.base_url.removesuffix("/v1"), model="stub", pid=os.getpid())
        slow = WorkloadPlan(
            workload="saturating", options=CLOSED.options.model_copy(update={"warmup": 10**6}), limit_s=3
        )
        began_s = time.monotonic()
        with pytest.raises(SideFailed):
            next(Duet(slots, here, here, tmp_path).closed(sample, slow, 0.5))
        assert time.monotonic() - began_s < 30


@pytest.mark.parametrize(
    ("slots", "fault"), [("[[0],[0]]", "share a core"), ("[[0],[1,2]]", "one shape"), ("[[]]", "one shape")]
)
def test_slots_that_favour_a_side_are_refused(slots: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_SANDBOX_SLOTS", slots)
    with pytest.raises((ValidationError, Exception), match=fault):
        SandboxSettings()
