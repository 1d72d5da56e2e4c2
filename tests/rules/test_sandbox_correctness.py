from __future__ import annotations

import pytest

from infra.bench.correctness import Answer, Question, needle_question, odd_questions
from tasks.sandbox.correctness import judge_outputs
from tasks.shared.records import Outcome

PLAIN = [Question(id=f"p{i}", messages=({"role": "user", "content": "x"},)) for i in range(3)]
NEEDLE = needle_question(60, seed=1)
ODD = odd_questions(100)
ASKED = [*PLAIN, NEEDLE, *ODD]


def answers(*, texts=("a", "b", "c"), needle=NEEDLE.needle, odd=(200, 400, 200)):
    found = [Answer(id=q.id, status=200, text=t) for q, t in zip(PLAIN, texts, strict=True)]
    found.append(Answer(id=NEEDLE.id, status=200, text=needle))
    return found + [Answer(id=q.id, status=s, text="") for q, s in zip(ODD, odd, strict=True)]


def judged(candidate, *, again=None):
    return judge_outputs(ASKED, answers(), again or answers(), candidate)


def test_V6_equal_texts_found_needles_and_equal_statuses_pass():
    report = judged(answers())
    assert report.judgement.outcome is Outcome.PASS
    assert (report.compared, report.equal, report.needles_asked, report.needles_found) == (3, 3, 1, 1)


@pytest.mark.parametrize(
    ("outcome", "rule", "candidate"),
    [
        (Outcome.FAIL, "outputs", answers(texts=("a", "b", "c and more"))),  # the end of a text counts, too
        (Outcome.FAIL, "needles", answers(needle="none")),
        (Outcome.FAIL, "odd inputs", answers(odd=(200, 200, 200))),  # an over-long prompt must be refused
        (Outcome.ERROR, "outputs", answers()[1:]),
    ],
)
def test_V6_what_differs_is_wrong(outcome, rule, candidate):
    report = judged(candidate)
    assert report.judgement.outcome is outcome
    assert any(r.rule == rule and r.outcome is outcome for r in report.judgement.reasons)


def test_V6_a_text_on_which_the_baseline_disagrees_with_itself_is_not_held_against_the_change():
    report = judged(answers(texts=("a", "b", "another")), again=answers(texts=("a", "b", "changed")))
    assert report.judgement.outcome is Outcome.PASS
    assert report.compared == report.baseline_self_equal == 2


def test_V6_a_test_that_the_baseline_fails_is_inconclusive():
    report = judged(answers(), again=answers(texts=("x", "y", "z")))
    assert report.judgement.outcome is Outcome.INCONCLUSIVE


def test_V6_a_needle_that_the_baseline_misses_does_not_count():
    baseline = answers(needle="I do not know")
    report = judge_outputs(ASKED, baseline, baseline, answers(needle="nor do I"))
    assert report.needles_asked == 0
    assert report.judgement.outcome is Outcome.PASS
