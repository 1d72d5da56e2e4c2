"""The six questions: one no stops a campaign, and so does an answer that nobody measured."""

import pytest

from tasks.shared.preconditions import Measured, judge_preconditions, same_shape
from tasks.shared.records import Outcome

F, N, P = Outcome.FAIL, Outcome.NO_DATA, Outcome.PASS
READY = {
    "window_s": 86_400,
    "window_needed_s": 86_400,
    "sandbox_shape": "H100 x8",
    "production_shape": "H100 x8",
    "traffic_objects": 240,
    "criteria_pinned": True,
    "switch_drill_ms": 40.0,
}
QUESTIONS = [
    "trusted_baseline",
    "same_shape",
    "real_traffic",
    "criteria_committed",
    "rollback_drilled",
    "system_stable",
]


def ask(**changes):
    return judge_preconditions(Measured(**{**READY, **changes}))


def test_P1_six_yes_start_the_campaign_and_each_answer_is_given():
    judged, answers = ask()
    assert judged.outcome is P
    assert list(answers) == QUESTIONS
    assert all(a.startswith("yes: ") for a in answers.values())


@pytest.mark.parametrize(
    ("question", "expected", "changes", "words"),
    [
        ("trusted_baseline", F, {"window_s": 60}, "60 s long and the criteria demand 86,400 s"),
        ("same_shape", F, {"sandbox_shape": "A100 x8"}, "unverified"),
        ("same_shape", F, {"sandbox_shape": "H100 x2"}, "unverified"),
        ("same_shape", F, {"sandbox_shape": ""}, "unknown"),
        ("real_traffic", F, {"traffic_objects": 0}, "0 objects"),
        ("real_traffic", N, {"traffic_objects": None}, "not listed"),
        ("criteria_committed", F, {"criteria_pinned": False}, "not a committed file"),
        ("rollback_drilled", N, {"switch_drill_ms": None}, "no rollback drill"),
        ("rollback_drilled", F, {"switch_drill_ms": 90_000.0}, "90,000 ms"),
        ("rollback_drilled", F, {"rollback_failed": "r-7"}, "r-7"),
        ("system_stable", F, {"rollout_under_way": "r-8"}, "r-8"),
    ],
)
def test_P1_one_no_stops_the_campaign_with_that_answer(question, expected, changes, words):
    judged, answers = ask(**changes)
    assert judged.outcome is expected
    assert words in answers[question]
    assert [q for q in QUESTIONS if not answers[q].startswith("yes")] == [question]


def test_P1_a_new_model_has_no_history_and_ends_as_awaiting_a_baseline():
    judged, answers = ask(new_model=True, window_s=0)
    assert judged.outcome is P
    assert "awaiting production baseline" in answers["trusted_baseline"]


@pytest.mark.parametrize(
    ("expected", "sandbox", "production", "ratio"),
    [
        (True, "H100 x8", "h100 x8", ""),
        (True, "cpu x1", "cpu x1", ""),
        (False, "H100 x2", "H100 x8", ""),
        (True, "H100 x2", "H100 x8", "one replica of four"),
        (False, "A100 x8", "H100 x8", "one of two"),
        (False, "", "", ""),
        (False, "unknown", "H100 x8", "x"),
    ],
)
def test_S2_shape_is_the_accelerator_and_its_count_or_a_stated_ratio(expected, sandbox, production, ratio):
    assert same_shape(sandbox, production, stated_ratio=ratio) is expected
