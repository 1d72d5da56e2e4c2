"""How outcomes add up."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.outcomes import WORST_FIRST, combine, judgement, with_reasons
from tasks.shared.records import Outcome, Reason

F, E, N, I, P = Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741

outcomes = st.lists(st.sampled_from(list(Outcome)))


@pytest.mark.parametrize(
    ("expected", "parts"),
    [
        (N, []),
        (P, [P]),
        (P, [P, P, P]),
        (I, [P, I]),
        (N, [P, I, N]),
        (E, [P, I, N, E]),
        (F, [P, I, N, E, F]),
        (F, [F, P, P, P, P]),
        (E, [E, E, E]),
    ],
)
def test_outcomes_combine_worst_first_and_the_empty_set_is_no_data(expected, parts):
    assert combine(parts) is expected


@given(outcomes)
def test_only_a_set_of_nothing_but_passes_passes(parts):
    assert (combine(parts) is P) == (bool(parts) and set(parts) == {P})


@given(outcomes, st.randoms())
def test_order_does_not_matter(parts, random):
    shuffled = parts[:]
    random.shuffle(shuffled)
    assert combine(parts) is combine(shuffled)


@given(outcomes, outcomes)
def test_combining_in_two_steps_is_the_same_as_in_one(one, two):
    parts = [combine(x) for x in (one, two) if x]
    assert combine(parts) is combine([*one, *two])


def test_every_outcome_has_a_rank():
    assert set(WORST_FIRST) == set(Outcome)


def test_silent_reasons_are_shown_and_decide_nothing():
    said = judgement([Reason(rule="a", outcome=P, text="good")], silent=[Reason(rule="b", outcome=N, text="unread")])
    assert said.outcome is P
    assert [r.rule for r in said.reasons] == ["a", "b"]


def test_nothing_but_silent_reasons_is_no_data():
    assert judgement([], silent=[Reason(rule="b", outcome=P, text="x")]).outcome is N


def test_any_pair_is_as_bad_as_its_worse_half():
    for one, two in itertools.product(Outcome, repeat=2):
        assert combine([one, two]) is min((one, two), key=WORST_FIRST.index)


def test_a_silent_reason_stays_silent_when_further_reasons_decide():
    said = judgement([Reason(rule="a", outcome=P, text="good")], silent=[Reason(rule="b", outcome=N, text="unread")])
    assert with_reasons(said, []) == said
    further = with_reasons(said, [Reason(rule="c", outcome=Outcome.INCONCLUSIVE, text="spread")])
    assert further.outcome is Outcome.INCONCLUSIVE
    assert [r.rule for r in further.reasons] == ["a", "b", "c"]
