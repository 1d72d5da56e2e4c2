"""Data-quality gates with the real Great Expectations."""

from __future__ import annotations

import pandas as pd
import pytest

from infra.quality.runner import run_gate, run_suite
from infra.quality.suite import (
    GateSuite,
    between,
    contains_all,
    exists,
    filled,
    matches,
    one_of,
    sum_between,
    unique,
)
from infra.readings import Reading
from tasks.baseline.gates import baseline_rows, baseline_suite
from tasks.baseline.rules import baseline_report, metric_baseline
from tasks.bottleneck import evidence as ids
from tasks.bottleneck.gates import evidence_rows, evidence_suite
from tasks.canary.gates import PLAN, VERDICT, plan_rows, verdict_rows
from tasks.canary.records import RolloutPlan
from tasks.hypothesis.gates import HYPOTHESES, hypothesis_rows
from tasks.hypothesis.records import Hypotheses, Hypothesis
from tasks.sandbox.records import CorrectnessReport, SandboxVerdict, TrialResult
from tasks.shared.records import CanaryStep, Judgement, Outcome, OutcomeClass, Target, Window
from tasks.shared.traffic_gate import sample_rows, traffic_suite
from tests.rules.serving_configs import serving_config

TARGET = Target(model="m", pool="p")
SHA = "a" * 64


def run(frame, expectations, **kw):
    return run_suite(frame, expectations, name="t", **{"min_rows": 1, **kw})


def test_a_good_frame_passes_and_everything_declared_was_evaluated():
    found = run(pd.DataFrame({"x": [1, 2]}), [filled("x"), between("x", 0, 5), unique("x"), sum_between("x", 3, 3)])
    assert (found.passed, found.evaluated, found.declared, found.rows) == (True, 4, 4, 2)


def test_DQ1_an_empty_frame_fails():
    found = run(pd.DataFrame({"x": []}), [between("x", 0, 5)])
    assert not found.passed
    assert found.failures == ("0 rows, 1 are needed",)


def test_DQ1_an_empty_frame_without_columns_fails():
    assert not run_gate(GateSuite(name="t", min_rows=1, expectations=(filled("x"),)), []).passed


def test_DQ1_an_empty_suite_fails():
    found = run(pd.DataFrame({"x": [1]}), [])
    assert not found.passed
    assert "declares no expectation" in found.failures[0]
    with pytest.raises(ValueError, match="at least 1"):
        GateSuite(name="t", min_rows=1, expectations=())


def test_DQ1_a_misspelt_column_fails_with_its_name():
    found = run(pd.DataFrame({"x": [1]}), [between("typo", 0, 5)])
    assert not found.passed
    assert found.failures[0] == "no column typo; there are x"
    assert "raised" in found.failures[1]


def test_DQ1_a_column_in_another_case_fails_with_its_name():
    found = run(pd.DataFrame({"x": [1]}), [filled("x"), unique("X")])
    assert "no column X; there are x" in found.failures


def test_DQ1_no_row_passes_nothing_whatever_was_asked():
    found = run_suite(pd.DataFrame({"x": []}), [filled("typo")], name="t", min_rows=0)
    assert found.failures == ("0 rows, 1 are needed",)


def test_DQ1_an_infinite_number_is_in_no_range():
    found = run(pd.DataFrame({"x": [1.0, float("inf")]}), [filled("x"), between("x", 0, None)])
    assert found.failures == ("1 values of x are infinite",)


def test_DQ1_text_among_numbers_fails_with_the_reason():
    found = run(pd.DataFrame({"x": ["1", 2]}), [between("x", 0, 5)])
    assert not found.passed
    assert "'x'" in found.failures[0]


def test_DQ1_a_declared_expectation_that_is_evaluated_once_only_fails():
    found = run(pd.DataFrame({"x": [1]}), [filled("x"), filled("x")])
    assert found.declared == 2
    assert found.passed is (found.evaluated == 2)


def test_DQ1_too_few_rows_of_a_bucket_fail():
    frame = pd.DataFrame({"x": [1, 2, 3], "s": ["short", "short", "long"]})
    found = run(frame, [filled("x")], bucket_column="s", min_rows_per_bucket={"short": 2, "medium": 1, "long": 2})
    assert found.failures == ("0 rows with s=medium, 1 are needed", "1 rows with s=long, 2 are needed")
    assert not run(frame, [filled("x")], bucket_column="typo", min_rows_per_bucket={"short": 1}).passed


def test_nulls_do_not_slip_through_beside_a_range():
    assert not run(pd.DataFrame({"x": [1, None]}), [filled("x"), between("x", 0, 5)]).passed


def test_failures_say_what_was_found():
    found = run(pd.DataFrame({"x": [1, 9]}), [between("x", 0, 5), exists("x")])
    assert "9" in found.failures[0]
    assert "9" in found.text()
    assert not run(pd.DataFrame({"x": ["a"]}), [contains_all("x", ["a", "b"])]).passed
    assert not run(pd.DataFrame({"x": ["a"]}), [matches("x", "^b$")]).passed
    assert not run(pd.DataFrame({"x": [True, False]}), [one_of("x", [True])]).passed


# The gates of the stages


def request(i, **change):
    return {
        "request_id": f"r{i}",
        "arrival_s": float(i),
        "prompt_tokens": 100,
        "output_tokens": 10,
        "messages": [{"role": "user", "content": "x"}],
        **change,
    }


def traffic(requests, **kw):
    rows = sample_rows(requests, short_below=512, medium_below=4096)
    return run_gate(traffic_suite(min_requests=2, **kw), rows)


def test_traffic_gate_passes_a_good_sample():
    blocks = request(2, messages=None, block_ids=[1, 2], prompt_tokens=5000)
    assert traffic([request(1), blocks], min_per_stratum={"short": 1, "long": 1}).passed


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [request(1)],
        [request(1), request(1)],
        [request(1), request(2, prompt_tokens=0)],
        [request(1), request(2, prompt_tokens=None)],
        [request(1), request(2, arrival_s=None)],
        [request(1), request(2, messages=None)],
        [request(1), request(2, messages=[])],
        [request(1), {"request_id": "r2"}],
        [request(1), request(2, output_tokens="ten")],
    ],
)
def test_DQ1_traffic_gate_refuses(bad):
    assert not traffic(bad).passed


def test_traffic_gate_needs_its_strata():
    found = traffic([request(1), request(2)], min_per_stratum={"long": 1})
    assert found.failures == ("0 rows with stratum=long, 1 are needed",)


def baseline(*metrics, end_s=60):
    return baseline_report(
        target=TARGET,
        campaign="c",
        window=Window(start_s=0, end_s=end_s),
        config=serving_config(),
        criteria_hash=SHA,
        metrics=metrics,
        price_per_accelerator_hour=1,
    )


def test_baseline_gate():
    good = metric_baseline("throughput_per_gpu", Reading.of(10, "tok/s"))
    unknown = metric_baseline("throughput_per_gpu", Reading.unknown("no answer", unit="tok/s"))
    other = metric_baseline("ttft_p99", Reading.unknown("no answer", unit="ms"))
    need = ("throughput_per_gpu",)

    def gate(report):
        return run_gate(baseline_suite(need, min_window_s=50), baseline_rows(report, need)).passed

    assert gate(baseline(good, other))
    assert not gate(baseline(unknown, other))
    assert not gate(baseline(other))
    assert not gate(baseline())
    assert not gate(baseline(good, end_s=10))
    assert not gate(baseline(metric_baseline("throughput_per_gpu", Reading.of(-1, "tok/s"))))


def test_evidence_gate():
    def gate(**readings):
        pack = ids.evidence_pack("c", {getattr(ids, k): v for k, v in readings.items()})
        return run_gate(evidence_suite(ids.REQUIRED), evidence_rows(pack, ids.REQUIRED)).passed

    one, none = Reading.of(1, "requests"), Reading.unknown("no answer")
    zero = Reading.of(0, "requests")
    assert gate(RUNNING_MAX=one, WAITING_AVG=zero, MAX_NUM_SEQS=one, KV_CACHE_MAX=none)
    assert not gate(RUNNING_MAX=one, WAITING_AVG=none, MAX_NUM_SEQS=one)
    assert not gate(RUNNING_MAX=one, MAX_NUM_SEQS=one)
    assert not gate()


def hypothesis(**change):
    return Hypothesis(
        **{
            "id": "h-1",
            "knob": "max_num_seqs",
            "knob_class": "numeric",
            "value_from": 8,
            "value_to": 16,
            "metric": "throughput_per_gpu",
            "expected_change_pct": None,
            "because": "b",
            "bottleneck": "queueing",
            "validate_by": "v",
            "holds_if": "h",
            "worst_case": "w",
            "may_get_worse": ("p99_latency",),
            "may_change_outputs": False,
            "rollback": "r",
            "source": "playbook",
            **change,
        }
    )


def test_hypothesis_gate():
    def gate(*hypotheses):
        return run_gate(HYPOTHESES, hypothesis_rows(Hypotheses(campaign="c", hypotheses=hypotheses))).passed

    assert gate(hypothesis())
    assert gate(hypothesis(), hypothesis(id="h-2", knob="enable_prefix_caching", value_from=False, value_to=True))
    assert not gate()
    assert not gate(hypothesis(), hypothesis(id="h-2"))
    assert not gate(hypothesis(value_to=8))
    assert not gate(hypothesis(worst_case=" "))


def verdict(**change):
    config = serving_config(max_num_seqs=16)
    passed = Judgement(outcome=Outcome.PASS)

    def trial(**more):
        return TrialResult(
            **{
                "trial_id": "t",
                "campaign": "c",
                "target": TARGET,
                "hypothesis_ids": ("h-1",),
                "changes": {"max_num_seqs": 16},
                "config": config,
                "config_hash": config.config_hash(),
                "baseline_hash": serving_config().config_hash(),
                "kind": "single",
                "outcome_class": OutcomeClass.EFFECTIVE,
                "judgement": passed,
                "correctness": CorrectnessReport(judgement=passed),
                **more,
            }
        )

    held_out = trial(**{"held_out": True, "kind": "held_out", **change.pop("held_out_change", {})})
    return SandboxVerdict(
        **{
            "campaign": "c",
            "target": TARGET,
            "criteria_hash": SHA,
            "pinned": True,
            "judgement": passed,
            "winner": trial(),
            "held_out": held_out,
            "trials": (trial(), held_out),
            **change,
        }
    )


def test_verdict_gate():
    assert run_gate(VERDICT, verdict_rows(verdict())).passed
    for change in (
        {"pinned": False},
        {"judgement": Judgement(outcome=Outcome.INCONCLUSIVE)},
        {"winner": None},
        {"held_out": None},
        {"criteria_hash": "unpinned"},
        {"held_out_change": {"held_out": False}},
        {"held_out_change": {"outcome_class": OutcomeClass.UNVERIFIED}},
        {"held_out_change": {"config_hash": "other"}},
    ):
        assert not run_gate(VERDICT, verdict_rows(verdict(**change))).passed, change


def plan(shares=(0.05, 1.0), **change):
    config = serving_config(max_num_seqs=16)
    steps = tuple(CanaryStep(share=s, duration_s=10, stop_on=("any",), min_samples=5, max_hold_s=20) for s in shares)
    return RolloutPlan(
        **{
            "plan_id": "p",
            "target": TARGET,
            "campaign": "c",
            "config": config,
            "config_hash": config.config_hash(),
            "baseline_config": serving_config(),
            "baseline_hash": serving_config().config_hash(),
            "changes": {"max_num_seqs": 16},
            "criteria_hash": SHA,
            "verdict_hash": SHA,
            "expected_gain_pct": 20,
            "risks": (),
            "steps": steps,
            "created_s": 1,
            **change,
        }
    )


def test_plan_gate():
    assert run_gate(PLAN, plan_rows(plan())).passed
    for bad in (
        plan(steps=()),
        plan(shares=(0.5, 0.05, 1.0)),
        plan(shares=(0.05, 0.5)),
        plan(config_hash=SHA),
        plan(changes={}),
        plan(verdict_hash=""),
    ):
        assert not run_gate(PLAN, plan_rows(bad)).passed
