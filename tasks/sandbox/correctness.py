"""Judges outputs: the candidate against the baseline, and the baseline against itself first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bench.correctness import Answer, Question
from tasks.sandbox.records import CorrectnessReport
from tasks.shared.outcomes import judgement
from tasks.shared.records import Outcome, Reason


def judge_outputs(
    questions: Sequence[Question],
    baseline: Sequence[Answer],
    baseline_again: Sequence[Answer],
    candidate: Sequence[Answer],
) -> CorrectnessReport:
    """Whether the candidate answers like the baseline does, as far as the baseline agrees with itself.

    Texts: only questions that the baseline answers alike in two batch compositions are compared; a candidate that
    differs there is wrong. Needles: only those that the baseline finds count. Odd inputs: the status must be the
    same, and an over-long prompt must be refused, not answered. Nothing that can be compared is inconclusive.
    """
    by_id = {a.id: a for a in candidate}
    again = {a.id: a for a in baseline_again}
    first = {a.id: a for a in baseline}
    reasons: list[Reason] = []
    compared = equal = self_equal = found = asked = 0
    odd_same = True
    for q in questions:
        b, c = first[q.id], by_id.get(q.id)
        if c is None or c.status == 0:
            reasons.append(
                Reason(rule="outputs", outcome=Outcome.ERROR, text=f"{q.id} got no answer from the candidate")
            )
            continue
        if q.odd:
            if c.status != b.status:
                odd_same = False
                reasons.append(
                    Reason(
                        rule="odd inputs",
                        outcome=Outcome.FAIL,
                        text=f"{q.id}: baseline answers {b.status}, candidate {c.status}",
                    )
                )
            continue
        if q.needle:
            if q.needle in b.text:
                asked += 1
                found += q.needle in c.text
            continue
        if b.text != again[q.id].text:
            continue
        self_equal += 1
        compared += 1
        equal += c.text == b.text
    if compared and equal < compared:
        reasons.append(
            Reason(
                rule="outputs",
                outcome=Outcome.FAIL,
                observed=equal,
                limit=compared,
                unit="texts",
                text=f"{equal} of {compared} texts equal the baseline's, which agrees with itself in all",
            )
        )
    elif compared:
        reasons.append(
            Reason(
                rule="outputs",
                outcome=Outcome.PASS,
                observed=equal,
                limit=compared,
                unit="texts",
                text=f"all {compared} full texts equal the baseline's",
            )
        )
    else:
        reasons.append(
            Reason(
                rule="outputs",
                outcome=Outcome.INCONCLUSIVE,
                text="the baseline does not agree with itself in any text, so nothing can be compared",
            )
        )
    if asked and found < asked:
        reasons.append(
            Reason(
                rule="needles",
                outcome=Outcome.FAIL,
                observed=found,
                limit=asked,
                unit="needles",
                text=f"{found} of the {asked} needles that the baseline finds were found",
            )
        )
    return CorrectnessReport(
        judgement=judgement(reasons),
        compared=compared,
        equal=equal,
        baseline_self_equal=self_equal,
        needles_found=found,
        needles_asked=asked,
        odd_inputs_same=odd_same,
    )
