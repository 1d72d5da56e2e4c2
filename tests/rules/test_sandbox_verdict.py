"""Stage 4's rules on a campaign: combinations, rank, winner, verdict."""

import math

import pytest

from tasks.sandbox.rules import (
    judge_single,
    judge_trial,
    objective,
    predicted_combination_pct,
    sandbox_discount_pct,
    synergy_pct,
)
from tasks.sandbox.verdict import sandbox_verdict
from tasks.sandbox.winner import members_contribute, pick_winner
from tasks.shared.records import ObjectiveWeights, Outcome, OutcomeClass
from tests.rules.trial_records import (
    DEMO,
    PRODUCTION,
    comparisons,
    trial,
)

F, E, N, I, P = Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def test_V7_prediction_is_the_product_and_synergy_the_rest():
    predicted = predicted_combination_pct([20.1, 11.4])
    assert predicted == pytest.approx(33.7914)
    assert synergy_pct(34.8, predicted) == pytest.approx(1.0086)
    assert predicted_combination_pct([]) is None
    assert synergy_pct(None, predicted) is None


def test_C2_adopted_changes_of_19_14_9_and_7_meet_the_target_only_together():
    gains = (19, 14, 9, 7)
    for gain in gains[2:]:
        assert judge_trial(comparisons(throughput_per_gpu=100 + gain), PRODUCTION).outcome is F
        assert judge_single(comparisons(throughput_per_gpu=100 + gain), PRODUCTION).outcome is P
    together = 100 + predicted_combination_pct(gains)
    assert judge_trial(comparisons(throughput_per_gpu=together), PRODUCTION).outcome is P


A, B, AB = {"a": 1}, {"b": 2}, {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("expected", "single_a", "single_b", "both"),
    [
        (P, 114, 110, 124),
        (F, 120, 110, 119),
        (F, 114, 124, 124),
    ],
)
def test_C2_of_a_pair_leaving_one_out_is_the_other_alone(expected, single_a, single_b, both):
    trials = (trial(A, single_a), trial(B, single_b), trial(AB, both, kind="combination"))
    assert members_contribute(trials[2], trials, PRODUCTION).outcome is expected


def test_C2_a_member_that_was_not_left_out_in_a_measurement_is_no_data():
    both = trial(AB, 124, kind="combination")
    assert members_contribute(both, (trial(A, 114), both), PRODUCTION).outcome is N


@pytest.mark.parametrize("outcome_class", list(OutcomeClass))
def test_C2_V3_only_a_decided_measurement_proves_a_member(outcome_class):
    proofs = {"effective", "no effect", "side effect", "regression"}
    both = trial(AB, 124, kind="combination")
    alone = (trial(A, 114), trial(B, 110, outcome_class=outcome_class))
    said = members_contribute(both, (*alone, both), PRODUCTION)
    assert said.outcome is (P if outcome_class.value in proofs else N)
    if said.outcome is N:
        assert all(f"single-b is {outcome_class.value}" in r.text for r in said.reasons if r.outcome is N)


def test_C2_V3_a_member_whose_share_the_noise_hides_is_not_proven():
    wide = (0.1, -0.05, -0.05)
    trials = (trial(A, 114), trial(B, 110, noise=wide), trial(AB, 124, kind="combination", noise=wide))
    said = members_contribute(trials[2], trials, PRODUCTION)
    assert said.outcome is not P
    assert any(r.outcome is I and "cannot be told to add" in r.text for r in said.reasons)


def test_V7_a_fifth_change_that_takes_the_stack_down_is_found():
    trials = (trial(A, 146.2), trial(B, 103), trial(AB, 143.5, kind="combination"))
    (b_share,) = [r for r in members_contribute(trials[2], trials, PRODUCTION).reasons if "adds nothing" in r.text]
    assert b_share.outcome is F
    assert b_share.observed == pytest.approx(-1.8, abs=0.1)


def test_C2_a_member_that_breaches_a_guard_alone_fails_the_combination():
    trials = (trial(A, 114, p99_latency=1200), trial(B, 110), trial(AB, 124, kind="combination"))
    assert members_contribute(trials[2], trials, PRODUCTION).outcome is F


def test_C5_objective_weighs_relative_changes():
    weights = ObjectiveWeights(throughput=1, ttft_p99=0.3, tpot_p99=0.3, memory_penalty=0.5, memory_threshold=0.9)
    given_ = comparisons(throughput_per_gpu=120, ttft_p99=220, tpot_p99=18)
    assert objective(given_, weights) == pytest.approx(0.2 - 0.03 + 0.03)
    assert objective(given_, weights, memory_limit_bytes=2e9) == pytest.approx(0.2)  # half used: no penalty
    assert objective(given_, weights, memory_limit_bytes=1e9 / 0.95) == pytest.approx(0.2 - 0.25)


@pytest.mark.parametrize("name", ["throughput_per_gpu", "ttft_p99", "tpot_p99"])
def test_OB1_an_objective_of_unknown_terms_is_no_number(name):
    assert objective(comparisons(**{name: None}), ObjectiveWeights()) is None
    assert objective(comparisons(throughput_per_gpu=math.inf), ObjectiveWeights()) is None


def test_winner_is_the_best_that_meets_the_criteria():
    trials = [trial(A, 120), trial(B, 140), trial(AB, 160, kind="combination", p99_latency=2000)]
    assert pick_winner(trials, PRODUCTION) is trials[1]


@pytest.mark.parametrize("outcome_class", [c for c in OutcomeClass if c is not OutcomeClass.EFFECTIVE])
def test_only_effective_trials_can_win(outcome_class):
    assert pick_winner([trial(A, 150, outcome_class=outcome_class)], PRODUCTION) is None


def test_below_the_target_the_baseline_stays():
    assert pick_winner([trial(A, 110), trial(B, 109)], PRODUCTION) is None
    assert pick_winner([], PRODUCTION) is None


@pytest.mark.parametrize(
    ("winner", "a", "b"), [("single-b", 130, 131.5), ("single-a", 130, 129), ("single-b", 130, 137)]
)
def test_OB1_the_best_of_a_tie_of_equals_wins(winner, a, b):
    for order in ([trial(A, a), trial(B, b)], [trial(B, b), trial(A, a)]):
        assert pick_winner(order, PRODUCTION).trial_id == winner


@pytest.mark.parametrize(("winner", "both"), [("single-a", 134), ("combination-a-b", 137)])
def test_OB1_ties_inside_the_smallest_gain_keep_the_simpler_configuration(winner, both):
    trials = [trial(AB, both, kind="combination"), trial(A, 130), trial(B, 120)]
    for order in (trials, trials[::-1]):
        assert pick_winner(order, PRODUCTION).trial_id == winner


def test_C2_a_combination_with_an_idle_member_cannot_win():
    trials = [trial(A, 130), trial(B, 104), trial(AB, 129, kind="combination", ttft_p99=150)]
    assert pick_winner(trials, PRODUCTION) is trials[0]


def test_OB1_an_infinite_objective_cannot_win():
    trials = [trial(A, 130).model_copy(update={"objective": math.inf}), trial(B, 120)]
    assert pick_winner(trials, PRODUCTION) is trials[1]


@pytest.mark.parametrize(
    ("expected", "ledger"),
    [
        (2.5, []),
        (2.5, [(20, 15), (11, 5)]),
        (3, [(20, 17), (11, 9), (14, 10)]),
        (2.5, [(20, None)] * 5),
        (0, [(10, 12), (10, 11), (10, 13)]),
    ],
)
def test_V9_discount_is_learned_from_the_ledger(expected, ledger):
    assert sandbox_discount_pct(ledger) == expected


def judged(**changes):
    winner = trial({"max_num_seqs": 16}, 130.0)
    held = trial({"max_num_seqs": 16}, 128.0, held_out=True, sample="unseen")
    options = {
        "criteria": PRODUCTION,
        "trials": (winner,),
        "winner": winner,
        "held_out": held,
        "pinned": True,
        "shapes_match": True,
    }
    return sandbox_verdict(**{**options, **changes})


def held_out(throughput=128.0, changes=None, **options):
    return trial(changes or {"max_num_seqs": 16}, throughput, **{"held_out": True, "sample": "unseen", **options})


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (P, {}),
        (I, {"pinned": False}),
        (I, {"shapes_match": False}),
        (N, {"held_out": None}),
        (F, {"held_out": held_out(110.0)}),  # V12: the held-out figure decides
        (F, {"held_out": held_out(p99_latency=1200)}),
        (N, {"held_out": held_out(p99_latency=None)}),
        (E, {"held_out": held_out(sample="search")}),  # the search saw it
        (E, {"held_out": held_out(changes={"max_num_seqs": 32})}),  # another configuration
        (E, {"held_out": trial({"max_num_seqs": 16}, 128.0, sample="unseen")}),
        (F, {"held_out": held_out(correct=Outcome.FAIL)}),
        (I, {"held_out": held_out(correct=Outcome.INCONCLUSIVE)}),
        (I, {"held_out": held_out(outcome_class=OutcomeClass.UNVERIFIED)}),
        (N, {"winner": None, "held_out": None, "trials": ()}),
        (
            F,
            {
                "winner": None,
                "held_out": None,
                "trials": (trial(A, 90, outcome_class=OutcomeClass.REGRESSION),),
            },
        ),
        (
            N,
            {
                "winner": None,
                "held_out": None,
                "trials": (trial(A, 90, outcome_class=OutcomeClass.INFEASIBLE),),
            },
        ),
    ],
)
def test_V12_verdict_over_the_held_out_trial(expected, changes):
    assert judged(**changes).outcome is expected


def test_C3_an_unpinned_verdict_says_so():
    assert "unpinned" in {r.rule for r in judged(pinned=False).reasons}


def test_S2_a_mismatch_is_called_unverified():
    assert "unverified" in {r.rule for r in judged(shapes_match=False).reasons}


def test_V6_outputs_that_nobody_compared_are_no_data():
    blind = {"winner": trial({"max_num_seqs": 16}, 130.0, correct=None), "held_out": held_out(correct=None)}
    assert judged(**blind).outcome is N


def test_C2_a_combination_wins_only_with_every_member_proven():
    both = trial(AB, 130, kind="combination")
    held = trial(AB, 128, held_out=True, sample="unseen")
    trials = (trial(A, 114), trial(B, 112), both)
    assert judged(winner=both, held_out=held, trials=trials).outcome is P
    assert judged(winner=both, held_out=held, trials=trials[1:]).outcome is N


def test_demo_criteria_judge_by_the_same_rules():
    assert judge_trial(comparisons(throughput_per_gpu=122, p99_latency=4400), DEMO).outcome is F
    assert judge_trial(comparisons(throughput_per_gpu=160), DEMO).outcome is P
