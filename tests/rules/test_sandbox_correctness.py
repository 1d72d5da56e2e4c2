from __future__ import annotations

import pytest

from infra.bench.correctness import (
    MOST_TOKENS,
    Answer,
    Question,
    ask,
    needle_question,
    odd_questions,
    plain_questions,
)
from infra.bench.measure import Served
from tasks.sandbox.correctness import judge_outputs
from tasks.shared.records import Outcome

PLAIN = [Question(id=f"p{i}", messages=({"role": "user", "content": "x"},)) for i in range(3)]
NEEDLE = needle_question(60, seed=1)
ODD = odd_questions(100)
ASKED = [*PLAIN, NEEDLE, *ODD]
F, E, N, I, P = Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS  # noqa: E741


def answer(question, text, status=200, ended="stop"):
    return Answer(id=question.id, status=status, text=text if status == 200 else "", finish_reason=ended)


def answers(
    *, texts=("a", "b", "c"), plain=(200, 200, 200), ended=("stop",) * 3, needle=NEEDLE.needle, odd=(200, 400, 200)
):
    """One engine's answers; `needle` is a text, or the status of a refusal."""
    found = [answer(q, t, s, e) for q, t, s, e in zip(PLAIN, texts, plain, ended, strict=True)]
    found.append(answer(NEEDLE, "", needle) if isinstance(needle, int) else answer(NEEDLE, needle))
    return found + [answer(q, "", s) for q, s in zip(ODD, odd, strict=True)]


def judged(candidate, *, baseline=None, again=None):
    first = baseline or answers()
    return judge_outputs(ASKED, first, again or first, candidate)


def text_of(report, rule="outputs"):
    return " ".join(r.text for r in report.judgement.reasons if r.rule == rule)


def test_V6_equal_texts_found_needles_and_equal_statuses_pass():
    report = judged(answers())
    assert report.judgement.outcome is P
    assert (report.compared, report.equal, report.needles_asked, report.needles_found) == (3, 3, 1, 1)
    assert report.odd_inputs_same is True


@pytest.mark.parametrize(
    ("outcome", "rule", "candidate"),
    [
        (F, "outputs", answers(texts=("a", "b", "c and more"))),  # the end of a text counts, too
        (F, "outputs", answers(ended=("stop", "stop", "length"))),  # the same so far, and it went on
        (F, "outputs", answers(plain=(200, 503, 200))),
        (F, "outputs", answers(plain=(0, 0, 0))),
        (F, "outputs", answers(needle=400)),
        (F, "needles", answers(needle="none")),
        (F, "odd inputs", answers(odd=(200, 200, 200))),  # an over-long prompt must be refused
        (F, "odd inputs", answers(odd=(200, 400, 0))),
        (E, "outputs", answers()[1:]),
    ],
)
def test_V6_what_differs_is_wrong(outcome, rule, candidate):
    report = judged(candidate)
    assert report.judgement.outcome is outcome
    assert any(r.rule == rule and r.outcome is outcome for r in report.judgement.reasons)


@pytest.mark.parametrize(
    ("outcome", "candidate"),
    [
        (N, answers(plain=(503,) * 3)),  # refusals on both sides are no equal texts
        (N, answers()),  # good texts are not wrong because the baseline gave none
    ],
)
@pytest.mark.parametrize("status", [0, 400, 503])
def test_V6_nothing_passes_where_the_baseline_did_not_answer(outcome, candidate, status):
    report = judged(candidate, baseline=answers(plain=(status,) * 3))
    assert report.judgement.outcome is outcome
    assert (report.compared, report.equal, report.baseline_self_equal) == (0, 0, 0)


@pytest.mark.parametrize("which", ["baseline", "again"])
def test_V6_a_question_that_the_baseline_answers_once_is_not_held_against_the_change(which):
    passes = {"baseline": answers(), "again": answers(), which: answers(plain=(200, 200, 504))}
    report = judged(answers(texts=("a", "b", "another"), plain=(200, 200, 200)), **passes)
    assert report.judgement.outcome is P
    assert report.compared == 2
    assert "p2 (504)" in text_of(report, "baseline")


def test_V6_who_did_not_answer_is_named_with_what_came_instead():
    assert "2 of 4 questions that the baseline answers: p0 (no answer), p2 (500)" in text_of(
        judged(answers(plain=(0, 200, 500)))
    )


def test_V6_a_text_on_which_the_baseline_disagrees_with_itself_is_not_held_against_the_change():
    report = judged(answers(texts=("a", "b", "another")), again=answers(texts=("a", "b", "changed")))
    assert report.judgement.outcome is P
    assert report.compared == report.baseline_self_equal == 2


def test_V6_a_test_that_the_baseline_fails_is_inconclusive():
    report = judged(answers(), again=answers(texts=("x", "y", "z")))
    assert report.judgement.outcome is I


@pytest.mark.parametrize(("outcome", "texts"), [(P, ("a", "b", "c")), (F, ("a", "b", "d"))])
def test_V6_a_needle_that_the_baseline_misses_is_shown_as_inconclusive_and_decides_nothing(outcome, texts):
    missed = answers(needle="I do not know")
    report = judged(answers(texts=texts, needle="nor do I"), baseline=missed)
    assert report.needles_asked == 0
    assert report.judgement.outcome is outcome
    (said,) = [r for r in report.judgement.reasons if r.rule == "needles"]
    assert said.outcome is I
    assert "finds none of 1 needles" in said.text


def test_V6_an_over_long_input_that_both_answer_proves_no_refusal():
    report = judged(answers(odd=(200, 200, 200)), baseline=answers(odd=(200, 200, 200)))
    assert report.judgement.outcome is I
    assert "odd-over-long" in text_of(report, "odd inputs")


def test_V6_an_odd_input_on_which_the_baseline_breaks_is_no_verdict_on_the_change():
    report = judged(answers(), baseline=answers(odd=(500, 400, 0)))
    assert report.judgement.outcome is P
    assert report.odd_inputs_same is True
    assert "odd-empty (500), odd-characters (no answer)" in text_of(report, "baseline")


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ("ended by themselves: 3)", ("stop",) * 3),
        (
            f"ended by themselves: 2; compared up to the cap of {PLAIN[1].max_tokens} tokens: 1)",
            ("stop", "length", "stop"),
        ),
        ("ended by themselves: 0; the engine does not say how they ended: 3)", ("",) * 3),
    ],
)
def test_V6_only_what_ended_by_itself_is_said_to_be_whole(said, ended):
    text = text_of(judged(answers(ended=ended), baseline=answers(ended=ended)))
    assert said in text
    assert "full" not in text


def test_V6_questions_stop_by_themselves_below_a_cap_that_is_no_short_prefix():
    assert {q.max_tokens for q in plain_questions()} == {MOST_TOKENS}
    assert MOST_TOKENS > 50


@pytest.mark.parametrize(
    ("expected", "status", "choice"),
    [
        (("Paris.", "stop"), 200, {"message": {"content": "Paris."}, "finish_reason": "stop"}),
        (("", "length"), 200, {"message": {"content": None}, "finish_reason": "length"}),
        (("Paris.", ""), 200, {"message": {"content": "Paris."}}),
        (("", ""), 400, {}),
    ],
)
def test_V6_an_answer_says_how_its_text_ended(monkeypatch, expected, status, choice):
    class Response:
        status_code = status

        def json(self):
            return {"choices": [choice]}

    monkeypatch.setattr("infra.bench.correctness.requests.post", lambda *_, **__: Response())
    (found,) = ask(Served(root_url="http://engine", model="m", pid=1), PLAIN[:1], concurrency=1)
    assert (found.text, found.finish_reason) == expected
    assert found.status == status
