"""The rollout's state machine: what a tick decides, and what can never happen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import BadInput
from tasks.canary.records import Phase
from tasks.canary.rollout import (
    ALLOWED,
    TERMINAL,
    decide,
    intend_rollback,
    moved,
    next_state,
    prepared,
    rolling_back,
    step_decision,
    step_in_force,
)
from tasks.canary.rules import stable_reference
from tasks.shared.records import Judgement, Outcome, Reason
from tests.rules.arm_readings import arm, plan, window
from tests.rules.trial_records import BASELINE, PRODUCTION

F, E, N, I, P = Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def said(outcome):
    return Judgement(outcome=outcome, reasons=(Reason(rule="error_rate", outcome=outcome, text=f"it is {outcome}"),))


def in_step(number=0, started_s=0.0):
    """A rollout in a step of 100 s that may hold for 300 s, needing three passes."""
    short = tuple(s.model_copy(update={"duration_s": 100.0, "max_hold_s": 300.0}) for s in PRODUCTION.canary_steps)
    made = plan().model_copy(update={"steps": short})
    state = moved(prepared("r", made, 0, token=1), Phase.DEPLOYING, started_s, token=1)
    state = moved(state, Phase.STEP, started_s, token=1)
    return state.model_copy(update={"step": number})


def tick(state, outcome, at_s):
    return next_state(state, step_decision(state, said(outcome), at_s, PRODUCTION, readings=window()), token=1)


def play(state, *events):
    for outcome, at_s in events:
        state = tick(state, outcome, at_s)
    return state


def test_R1_k_passes_over_the_whole_duration_advance():
    state = play(in_step(), (P, 30), (P, 60), (P, 90))
    assert (state.step, state.passes) == (0, 3)  # the duration is not over
    state = tick(state, P, 100)
    assert (state.step, state.passes, state.step_started_s) == (1, 0, 100)
    assert state.intent == "set share 0.05"


def test_CA2_fewer_than_k_passes_do_not_advance():
    state = play(in_step(), (N, 30), (E, 60), (P, 150), (P, 200))
    assert (state.step, state.passes) == (0, 2)
    assert tick(state, P, 250).step == 1


def test_the_last_reading_before_an_advance_passes():
    state = play(in_step(), (P, 30), (P, 60), (P, 90), (I, 120))
    assert state.step == 0


def test_the_last_step_leads_to_promotion():
    state = play(in_step(4), (P, 30), (P, 60), (P, 100))
    assert (state.phase, state.intent) == (Phase.PROMOTING, "promote")


@pytest.mark.parametrize("outcome", [N, E, I])
def test_CA1_no_pass_holds_and_then_rolls_back(outcome):
    state = play(in_step(), (outcome, 100), (outcome, 299))
    assert [d.action for d in state.decisions] == ["hold", "hold"]
    state = tick(state, outcome, 300)
    assert state.decisions[-1].action == "roll_back"
    assert state.intent == "roll back"
    assert {N: "no data", E: "readings contradict", I: "not decided"}[outcome] in state.reason


def test_CA1_holding_counts_from_the_last_pass():
    state = play(in_step(), (P, 90), (N, 310))
    assert state.decisions[-1].action == "hold"
    assert tick(state, N, 390).decisions[-1].action == "roll_back"


def test_R4_a_confirmed_breach_rolls_back_at_once():
    state = play(in_step(), (P, 30), (F, 31))
    assert state.intent == "roll back"
    assert state.reason.startswith("breach")
    assert state.phase is Phase.STEP  # rolled back only when it was verified


def test_CA2_failed_is_terminal_and_later_passes_never_overwrite_it():
    state = play(in_step(), (F, 10), (F, 11), (F, 12), *((P, 100 + i) for i in range(5)))
    assert rolling_back(state)
    assert len(state.decisions) == 1  # the rollback is decided once
    assert decide(state, said(P), 500, passes_to_advance=1) == "roll_back"
    with pytest.raises(BadInput, match="being rolled back"):
        moved(state, Phase.PROMOTING, 200, token=2)


def test_CA2_the_rollback_survives_a_restart():
    state = play(in_step(), (F, 10))
    again = type(state).model_validate_json(state.canonical_json())
    assert tick(again, P, 500) == state


def test_CA2_errors_and_failures_only_never_succeed():
    state = play(in_step(), (E, 10), (E, 20), (F, 30), (F, 40), (E, 50))
    assert rolling_back(state)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([P, P, P, F, E, N, I]), max_size=40))
def test_CA2_nothing_is_promoted_after_a_failure_and_every_step_has_its_passes(outcomes):
    state = in_step()
    for i, outcome in enumerate(outcomes):
        if state.phase is not Phase.STEP:
            break
        state = tick(state, outcome, 40.0 * (i + 1))
    seen = [d.judgement.outcome for d in state.decisions]
    if F in seen:
        assert rolling_back(state)
        assert state.phase is Phase.STEP
        assert seen.index(F) == len(seen) - 1
    for number in range(state.step):
        assert sum(d.judgement.outcome is P for d in state.decisions if d.step == number) >= 3
    assert all(d.judgement.outcome is P for d in state.decisions if d.action == "advance")


def test_R7_only_the_listed_transitions_exist():
    state = in_step()
    for source in Phase:
        for to in Phase:
            if source is to:
                continue
            here = state.model_copy(update={"phase": source})
            if to in ALLOWED[source]:
                assert moved(here, to, 1, token=1).phase is to
            else:
                with pytest.raises(BadInput):
                    moved(here, to, 1, token=1)


@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_R7_terminal_states_take_no_decision(phase):
    decision = step_decision(in_step(), said(P), 500, PRODUCTION)
    state = in_step().model_copy(update={"phase": phase})
    assert next_state(state, decision, token=2) == state
    assert intend_rollback(state, 500, "by hand", token=2) == state


def test_CA5_rollback_is_idempotent_and_a_no_op_when_nothing_is_in_progress():
    waiting = prepared("r", plan(), 0, token=1)
    assert intend_rollback(waiting, 1, "by hand", token=1) == waiting
    once = intend_rollback(in_step(), 5, "by hand", token=1)
    assert intend_rollback(once, 6, "again", token=2) == once
    back = moved(once, Phase.ROLLED_BACK, 7, token=1, rollback_ms=12.0)
    assert (back.phase, back.intent, back.rollback_ms, back.reason) == (
        Phase.ROLLED_BACK,
        "",
        12.0,
        "by hand",
    )
    assert moved(back, Phase.ROLLED_BACK, 8, token=3) == back


@pytest.mark.parametrize("phase", [Phase.DEPLOYING, Phase.STEP, Phase.PROMOTING, Phase.VERIFYING])
def test_CA5_every_phase_that_touches_production_can_be_rolled_back(phase):
    state = intend_rollback(in_step().model_copy(update={"phase": phase}), 5, "by hand", token=1)
    assert moved(state, Phase.ROLLED_BACK, 6, token=1).phase is Phase.ROLLED_BACK
    assert moved(state, Phase.ROLLBACK_FAILED, 6, token=1).phase is Phase.ROLLBACK_FAILED
    assert state.plan.baseline_config == BASELINE


def test_CA5_a_rollback_that_failed_is_left_by_a_repeated_rollback_only():
    failed = in_step().model_copy(update={"phase": Phase.ROLLBACK_FAILED})
    assert moved(failed, Phase.ROLLED_BACK, 6, token=1).phase is Phase.ROLLED_BACK
    with pytest.raises(BadInput):
        moved(failed, Phase.STEP, 6, token=1)


def test_a_step_whose_share_was_read_back_starts_its_clock():
    state = step_in_force(in_step(1), 77, token=2)
    assert (state.step_started_s, state.intent, state.token) == (77, "", 2)


def test_every_decision_states_the_harm_that_it_can_exclude():
    assert "4,000 requests" in tick(in_step(), P, 10).decisions[0].smallest_excludable_harm


def seen(*readings):
    """A rollout that read these stable arms, each in a step of its own."""
    state = in_step(4)
    decisions = tuple(
        step_decision(state, said(P), 1, PRODUCTION, readings=window(stable=one)).model_copy(update={"step": n})
        for n, one in readings
    )
    return state.model_copy(update={"decisions": decisions})


def test_R5_reference_is_stable_where_it_carried_most():
    arms = [(0, arm(30_000, load=3.8)), (2, arm(30_000, load=2.0)), (3, arm(30_000, load=0.1))]
    assert stable_reference(seen(*arms)).load_per_replica.value == 3.8
    assert stable_reference(in_step()) is None


def test_R5_reference_covers_a_whole_step_and_has_requests_enough():
    early = (0, arm(3, load=9.0))  # the first seconds of a step: a load that nobody can rely on
    assert stable_reference(seen(early, (0, arm(30_000, load=3.0)))).load_per_replica.value == 3.0
    assert stable_reference(seen(early, (1, arm(30_000, load=2.0)))).load_per_replica.value == 2.0
    assert stable_reference(seen(early, (1, arm(5, load=2.0)))).requests.value == 5
