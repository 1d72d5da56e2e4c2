"""Which combinations are measured, and when a measurement has answered."""

from __future__ import annotations

import math

import pytest

from tasks.sandbox.search import answered, combinations, worth_recording
from tasks.shared.records import OutcomeClass, PrimaryMetric
from tests.rules.trial_records import DEMO, PRODUCTION, pairs, run, trial

QUIET = (0.002, -0.001, -0.001)
LOUD = (0.2, -0.15, -0.05)


def measured(n, gain=0.0, noise=QUIET, metric="throughput_per_gpu", workload="saturating", **more):
    """`n` pairs in which the candidate's metric is 1 + gain times the baseline's."""
    return [
        run(side, workload, pair, order, **{metric: value}, **(more if side == "candidate" else {}))
        for pair in range(n)
        for order in ("AB", "BA")
        for side, value in (("baseline", 100.0), ("candidate", 100 * (1 + gain) * math.exp(noise[pair % 3])))
    ]


@pytest.mark.parametrize(
    ("enough", "pairs_made", "gain", "noise"),
    [
        (False, 1, 5.0, QUIET),  # never a class from fewer than three pairs
        (False, 2, -0.5, QUIET),
        (True, 3, 0.3, QUIET),
        (True, 3, -0.3, QUIET),
        (True, 3, 0.0, QUIET),
        (False, 3, 0.3, LOUD),
        (False, 4, 0.3, QUIET),  # no look between the looks
        (True, 5, 0.3, QUIET),
        (True, 8, 0.1, LOUD),  # the budget cannot answer it
        (False, 8, 0.35, LOUD),  # the budget may
    ],
)
def test_V3_a_single_change_is_measured_until_its_interval_answers(enough, pairs_made, gain, noise):
    assert answered("saturating", measured(pairs_made, gain, noise), PRODUCTION, proves=False) is enough


@pytest.mark.parametrize(
    ("enough", "gain", "noise"),
    [(True, 0.3, QUIET), (False, 0.15, QUIET), (True, 0.08, QUIET), (False, 0.1, LOUD), (True, -0.4, QUIET)],
)
def test_C2_what_proves_is_measured_until_its_target_is_decided(enough, gain, noise):
    assert answered("saturating", measured(8, gain, noise), PRODUCTION, proves=True) is enough


def test_OB2_refused_requests_end_a_measurement_at_once():
    refusing = measured(1, 1.0, error_rate=25.0, coverage=75.0)
    assert answered("saturating", refusing, PRODUCTION, proves=True)
    assert not worth_recording(refusing, PRODUCTION)


def test_OB2_requests_that_both_sides_refuse_end_nothing():
    both = [r.model_copy(update={"metrics": {**r.metrics, **SAME}}) for r in measured(1, 0.3)]
    assert not answered("saturating", both, PRODUCTION, proves=False)


SAME = {k: v for k, v in run(error_rate=25.0, coverage=75.0).metrics.items() if k in ("error_rate", "coverage")}


@pytest.mark.parametrize(("worth", "gain"), [(True, 0.3), (False, 0.0), (False, -0.3)])
def test_latencies_are_measured_of_what_is_better(worth, gain):
    assert worth_recording(measured(3, gain), PRODUCTION) is worth
    latency = PrimaryMetric(name="p99_latency", direction="lower", target_pct=-20)
    criteria = PRODUCTION.model_copy(update={"primary": (latency,)})
    assert worth_recording(measured(3, gain), criteria)


@pytest.mark.parametrize(
    ("enough", "worse", "noise"),
    [(True, 0.0, QUIET), (True, 0.3, QUIET), (False, 0.05, QUIET), (False, 0.0, LOUD), (True, 9.0, LOUD)],
)
def test_R6_recorded_load_goes_on_until_every_latency_guard_is_told(enough, worse, noise):
    closed = measured(3, 0.3)
    recorded = measured(3, worse, noise, "p99_latency", "recorded")
    assert answered("recorded", [*closed, *recorded], PRODUCTION, proves=False) is enough


def test_V4_another_load_goes_on_until_a_loss_there_is_told():
    closed = measured(3, 0.3)
    for gain, noise, enough in ((0.0, QUIET, True), (-0.2, QUIET, True), (0.0, LOUD, False)):
        short = measured(3, gain, noise, "throughput_short_prompts", "short_prompts")
        assert answered("short_prompts", [*closed, *short], PRODUCTION, proves=False) is enough


def test_the_demo_looks_as_production_does():
    assert answered("saturating", list(pairs(3, candidate={"throughput_per_gpu": 200})), DEMO, proves=True)


def members(*throughputs):
    return [trial({f"knob_{i}": i + 1}, t) for i, t in enumerate(throughputs)]


@pytest.mark.parametrize(
    ("sizes", "throughputs", "most"),
    [
        ([], (), 2),
        ([], (120.0,), 2),
        ([2], (120.0, 130.0), 2),
        ([], (120.0, 130.0), 0),
        ([3, 2, 2, 2], (110.0, 120.0, 130.0), 4),
        ([2], (110.0, 120.0, 130.0), 2),  # the three could not be proven member by member: the best two are
    ],
)
def test_V7_combinations_are_those_whose_members_can_be_proven(sizes, throughputs, most):
    assert [len(c) for c in combinations(members(*throughputs), most)] == sizes


def test_V7_a_member_that_is_not_effective_joins_no_combination():
    singles = [*members(120.0, 130.0), trial({"max_model_len": 192}, 150.0, outcome_class=OutcomeClass.SIDE_EFFECT)]
    (pair,) = combinations(singles, 2)
    assert all("max_model_len" not in m.changes for m in pair)
