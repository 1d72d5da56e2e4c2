"""Several loads: a win on one that another pays for, and memory seen at its peak (spec V4, V5)."""

from __future__ import annotations

import itertools

import pytest

from infra.errors import BadInput
from infra.readings import Reading
from tasks.sandbox.rules import classify, compare_runs
from tasks.sandbox.trial import judged
from tasks.sandbox.workloads import load_specific, memory_at_peak, plans, refuse_endless, slots_of
from tasks.shared.criteria_checks import faults
from tasks.shared.records import Outcome, OutcomeClass, SamplingPolicy
from tests.rules.serving_configs import serving_config
from tests.rules.trial_records import BASELINE, DEMO, NOISE, PRODUCTION, TARGET, comparison, pairs, run

F, N, I, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741
BOTH = ("short_prompts", "long_prompts")
LOADS = {
    "saturating": "throughput_per_gpu",
    "short_prompts": "throughput_short_prompts",
    "long_prompts": "throughput_long_prompts",
}


WIDE = (0.1, -0.05, -0.05)


def by_load(mix=100.0, short=100.0, long=100.0, *, noise=NOISE):
    values = {"throughput_per_gpu": mix, "throughput_short_prompts": short, "throughput_long_prompts": long}
    return [comparison(name, 100.0, after, noise=noise) for name, after in values.items() if after is not None]


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (P, by_load(mix=120, short=130, long=101)),
        (F, by_load(mix=120, short=130, long=90)),
        (F, by_load(mix=120, short=92, long=110)),
        (P, by_load(mix=120, short=99, long=98.5)),  # within the smallest gain: no loss that counts
        (N, by_load(mix=120, short=130, long=None)),
        (N, by_load(mix=120, short=130, long=Reading.unknown("no valid long_prompts span of the candidate"))),
        (I, [*by_load(mix=120)[:2], comparison("throughput_long_prompts", 100.0, 110.0, noise=WIDE)]),
    ],
)
def test_V4_a_win_on_one_workload_that_regresses_another_is_load_specific(expected, found):
    reasons = load_specific(found, PRODUCTION.measuring)
    assert {r.rule for r in reasons} == {"load_specific"}
    assert min((r.outcome for r in reasons), key=[F, N, I, P].index) is expected


@pytest.mark.parametrize("mix", [100.0, 90.0])
def test_V4_nothing_is_said_of_other_loads_where_the_mix_is_no_better(mix):
    assert load_specific(by_load(mix=mix, short=130, long=90), PRODUCTION.measuring) == ()


def test_V4_the_reason_names_every_load_and_its_size():
    (reason,) = load_specific(by_load(mix=120, short=130, long=90), PRODUCTION.measuring)
    for size in ("the mix +20.0 %", "short prompts +30.0 %", "long prompts -10.0 %"):
        assert size in reason.text


def test_V4_without_other_workloads_nothing_is_said():
    assert load_specific(by_load(mix=120), DEMO.measuring) == ()


def a_trial(*, criteria=PRODUCTION, changes=None, without=(), peak=64.0, memory=1e9, **throughput):
    """A whole trial, three pairs on every load; throughput is the candidate's by load."""
    runs = []
    for pair in range(3):
        for load in ("saturating", "recorded", *BOTH):
            for order, side in itertools.product(("AB", "BA"), ("baseline", "candidate")):
                metrics = {"peak_concurrency": Reading.of(peak, "requests")}
                if side == "candidate":
                    metrics["peak_memory"] = memory
                if load in LOADS:
                    rate = throughput.get(load, 130.0) if side == "candidate" else 100.0
                    metrics[LOADS[load]] = Reading.of(rate, "tok/s")
                if load not in without:
                    unwanted = () if load == "saturating" else ("throughput_per_gpu",)
                    runs.append(run(side, load, pair, order, without=unwanted, **metrics))
    changes = changes or {"max_num_seqs": 10}
    config = serving_config(**{**BASELINE.args, **changes})
    return judged(
        {
            "trial_id": "t",
            "campaign": "c",
            "target": TARGET,
            "hypothesis_ids": ("h",),
            "changes": changes,
            "config": config,
            "config_hash": config.config_hash(),
            "baseline_hash": BASELINE.config_hash(),
            "kind": "single",
        },
        criteria,
        runs,
        design="duet",
        outcome="measured",
        detail="",
        log_key="",
        correctness=None,
        shapes_match=True,
        memory=None,
        memory_limit_bytes=None,
        duration_s=1.0,
        measured_s=0.8,
    )


def test_V4_a_gain_under_every_load_is_effective():
    found = a_trial()
    assert (found.outcome_class, found.judgement.outcome) == (OutcomeClass.EFFECTIVE, P)


def test_V4_a_load_specific_gain_is_a_side_effect_and_does_not_pass():
    found = a_trial(long_prompts=80.0)
    assert (found.outcome_class, found.judgement.outcome) == (OutcomeClass.SIDE_EFFECT, F)
    assert any(r.rule == "load_specific" for r in found.judgement.reasons)


def test_V4_a_workload_that_was_not_measured_is_never_a_pass():
    found = a_trial(without=("long_prompts",))
    assert (found.outcome_class, found.judgement.outcome) == (OutcomeClass.UNVERIFIED, N)


def test_V5_without_peak_memory_no_trial_passes_even_where_no_guard_asks_for_it():
    unguarded = PRODUCTION.model_copy(update={"guards": tuple(g for g in PRODUCTION.guards if g.name != "peak_memory")})
    assert a_trial(criteria=unguarded).judgement.outcome is P
    found = a_trial(criteria=unguarded, memory=Reading.unknown("the engine's memory could not be read"))
    assert (found.outcome_class, found.judgement.outcome) == (OutcomeClass.UNVERIFIED, N)


def test_V5_memory_that_was_not_seen_at_peak_concurrency_is_inconclusive():
    found = a_trial(changes={"max_num_seqs": 10}, peak=9.0)
    assert (found.outcome_class, found.judgement.outcome) == (OutcomeClass.UNSTABLE, I)
    assert any(
        "at most 9 requests were under way at once and the engine takes 10" in r.text for r in found.judgement.reasons
    )


def test_V5_the_peak_of_any_load_counts_and_only_of_the_candidate():
    config = serving_config(max_num_seqs=64)
    many, few = Reading.of(64.0, "requests"), Reading.of(4.0, "requests")
    seen = [run("candidate", "short_prompts", peak_concurrency=many), run("candidate", peak_concurrency=few)]
    assert memory_at_peak(seen, config) == ()
    assert memory_at_peak([run("baseline", peak_concurrency=many), seen[1]], config)[0].outcome is I
    assert memory_at_peak([], config)[0].outcome is N


@pytest.mark.parametrize(
    ("slots", "short", "long"),
    [(8, 128, 8), (332, 332, 8)],
)
def test_V5_short_prompts_run_at_the_engines_own_peak(slots, short, long):
    found = {p.workload: p for p in plans(PRODUCTION.measuring, time_scale=2.0, slots=slots, strata={"short", "long"})}
    assert found["saturating"].options.concurrency == 64
    assert found["short_prompts"].options.concurrency == short
    assert found["long_prompts"].options.concurrency == long
    assert found["recorded"].options.concurrency is None
    assert found["recorded"].options.time_scale == 2.0


def test_V4_a_sample_without_a_stratum_leaves_its_workload_out():
    assert [p.workload for p in plans(PRODUCTION.measuring, time_scale=1.0, slots=1, strata={"short"})] == [
        "saturating",
        "recorded",
        "short_prompts",
    ]
    assert len(plans(DEMO.measuring, time_scale=1.0, slots=1, strata={"short", "long"})) == 2


def test_V5_slots_are_the_larger_of_both_engines():
    assert slots_of(serving_config(max_num_seqs=8), serving_config(max_num_seqs=16)) == 16
    assert slots_of(serving_config(), serving_config(max_num_seqs=True)) is None


def test_V5_an_engine_whose_slots_nobody_knows_was_not_seen_at_its_peak():
    seen = [run("candidate", peak_concurrency=Reading.of(64.0, "requests"))]
    (reason,) = memory_at_peak(seen, serving_config())
    assert reason.outcome is I
    assert "max_num_seqs" in reason.text


def test_V4_production_criteria_name_both_workloads_and_a_demo_says_that_it_does_not():
    one = PRODUCTION.model_copy(update={"measuring": SamplingPolicy.model_validate({"workloads": ["short_prompts"]})})
    assert any("measuring.workloads lacks long_prompts" in fault for fault in faults(one))
    assert any("short or long prompts alone" in line for line in DEMO.gives_up)


def test_a_load_may_last_as_long_as_its_arrivals_or_its_budget_and_an_endless_one_is_refused():
    found = plans(PRODUCTION.measuring, time_scale=2.0, slots=8, strata=set(), duration_s=1500.0)
    limits = {p.workload: p.limit_s for p in found}
    assert limits["recorded"] == 600.0 + 3000.0
    assert limits["saturating"] > 4 * 27 * 60
    refuse_endless(1500.0, 2.0)
    with pytest.raises(BadInput, match="the recorded load would last 86,000 s"):
        refuse_endless(86_000.0, 1.0)


def test_OB2_a_load_under_which_everything_is_refused_is_a_regression_and_not_unsteady():
    runs = list(pairs())
    refusing = [
        run("candidate", "long_prompts", i, valid=False, reasons=("no request succeeded: 0 of 20",), coverage=0.0)
        for i in range(3)
    ]
    found = classify(
        engine_outcome="measured",
        comparisons=compare_runs([*runs, *refusing], PRODUCTION),
        criteria=PRODUCTION,
    )
    assert found is OutcomeClass.REGRESSION
