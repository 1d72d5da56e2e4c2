"""Judges outputs: the candidate against the baseline, and the baseline against itself first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.bench.correctness import Answer, Question
from tasks.sandbox.records import CorrectnessReport
from tasks.shared.outcomes import judgement
from tasks.shared.records import Outcome, Reason


@dataclass(frozen=True)
class _Row:
    """A question and its answers; None where none was handed in."""

    question: Question
    first: Answer | None
    again: Answer | None
    candidate: Answer | None

    @property
    def baseline_answered(self) -> bool:
        """Whether there is something to compare with: a text, in both passes where texts are compared."""
        return _served(self.first) and (bool(self.question.needle) or _served(self.again))


def judge_outputs(
    questions: Sequence[Question],
    baseline: Sequence[Answer],
    baseline_again: Sequence[Answer],
    candidate: Sequence[Answer],
) -> CorrectnessReport:
    """Whether the candidate answers like the baseline does, as far as the baseline agrees with itself.

    A question that the baseline answers and the candidate does not is FAIL. Texts: compared where all three answers
    are texts (status 200) and the baseline's two, in two batch compositions, are alike; another text or another end
    is wrong. Nothing that can be compared is NO_DATA or INCONCLUSIVE, never PASS. Needles: only those that the
    baseline finds count. Odd inputs: the status must be the same, and an over-long one must be refused; where both
    answer it, it was not over-long or nobody refuses, and the whole is INCONCLUSIVE.

    What the baseline itself fails is no verdict on the change: it is shown as INCONCLUSIVE and decides nothing.
    """
    one, two, three = ({a.id: a for a in answers} for answers in (baseline, baseline_again, candidate))
    rows = [_Row(q, one.get(q.id), two.get(q.id), three.get(q.id)) for q in questions]
    plain = [r for r in rows if not r.question.odd and not r.question.needle]
    needles = [r for r in rows if r.question.needle]
    odd = [r for r in rows if r.question.odd]
    alike = [r for r in plain if r.baseline_answered and _said(r.first) == _said(r.again)]
    compared = [r for r in alike if _served(r.candidate)]
    differ = [r for r in compared if _said(r.candidate) != _said(r.first)]
    sought = [r for r in needles if r.first is not None and _served(r.first) and r.question.needle in r.first.text]
    found = [r for r in sought if r.candidate is not None and r.question.needle in r.candidate.text]
    odd_tested = [r for r in odd if r.first is not None and 0 < r.first.status < 500]
    deciding = [
        *_texts(plain, alike, compared, differ),
        *_unanswered([*plain, *needles], rows),
        *_needles(sought, found),
        *(reason for row in odd_tested for reason in _odd(row)),
    ]
    baseline_failed = [r for r in (*plain, *needles) if not r.baseline_answered]
    baseline_failed += [r for r in odd if r not in odd_tested]
    return CorrectnessReport(
        judgement=judgement(deciding, silent=_says_nothing(baseline_failed, needles, sought)),
        compared=len(compared),
        equal=len(compared) - len(differ),
        baseline_self_equal=len(alike),
        needles_found=len(found),
        needles_asked=len(sought),
        odd_inputs_same=all(_status(r.candidate) == _status(r.first) for r in odd_tested) if odd_tested else None,
    )


def _served(answer: Answer | None) -> bool:
    return answer is not None and answer.status == 200


def _said(answer: Answer | None) -> tuple[str, str]:
    """The text and how it ended: one that ended by itself is not the one that went on to the cap."""
    return ("", "") if answer is None else (answer.text, answer.finish_reason)


def _status(answer: Answer | None) -> str:
    return str(answer.status) if answer is not None and answer.status else "no answer"


def _ends(rows: Sequence[_Row]) -> str:
    """How the baseline's texts ended; what met the cap is not called full."""
    cut = [r for r in rows if r.first is not None and r.first.finish_reason == "length"]
    ended = [r for r in rows if r.first is not None and r.first.finish_reason == "stop"]
    parts = [f"ended by themselves: {len(ended)}"]
    if cut:
        caps = " or ".join(str(cap) for cap in sorted({r.question.max_tokens for r in cut}))
        parts.append(f"compared up to the cap of {caps} tokens: {len(cut)}")
    if unknown := len(rows) - len(cut) - len(ended):
        parts.append(f"the engine does not say how they ended: {unknown}")
    return "; ".join(parts)


def _texts(
    plain: Sequence[_Row], alike: Sequence[_Row], compared: Sequence[_Row], differ: Sequence[_Row]
) -> list[Reason]:
    equal = len(compared) - len(differ)
    if compared:
        if differ:
            ids = ", ".join(r.question.id for r in differ)
            text = f"{equal} of {len(compared)} texts equal the baseline's, which agrees with itself in all; not {ids}"
        else:
            text = f"all {len(compared)} texts that can be compared equal the baseline's"
        return [
            Reason(
                rule="outputs",
                outcome=Outcome.FAIL if differ else Outcome.PASS,
                observed=equal,
                limit=len(compared),
                unit="texts",
                text=f"{text} ({_ends(compared)})",
            )
        ]
    if alike:  # the candidate answered none of them, which is told of each
        return []
    if not any(r.baseline_answered for r in plain):
        text = f"the baseline did not answer any of {len(plain)} questions in both passes, so nothing can be compared"
        return [Reason(rule="outputs", outcome=Outcome.NO_DATA, text=text)]
    text = "the baseline does not agree with itself in any text, so nothing can be compared"
    return [Reason(rule="outputs", outcome=Outcome.INCONCLUSIVE, text=text)]


def _unanswered(with_texts: Sequence[_Row], rows: Sequence[_Row]) -> list[Reason]:
    reasons = []
    answered = [r for r in with_texts if r.baseline_answered]
    if lost := [r for r in answered if r.candidate is not None and not _served(r.candidate)]:
        which = ", ".join(f"{r.question.id} ({_status(r.candidate)})" for r in lost)
        reasons.append(
            Reason(
                rule="outputs",
                outcome=Outcome.FAIL,
                observed=len(answered) - len(lost),
                limit=len(answered),
                unit="answers",
                text=f"the candidate does not answer {len(lost)} of {len(answered)} questions that the baseline "
                f"answers: {which}",
            )
        )
    if missing := [r.question.id for r in rows if r.candidate is None]:
        text = f"{', '.join(missing)} got no answer from the candidate: none was handed in"
        reasons.append(Reason(rule="outputs", outcome=Outcome.ERROR, text=text))
    return reasons


def _needles(sought: Sequence[_Row], found: Sequence[_Row]) -> list[Reason]:
    if not sought:
        return []
    return [
        Reason(
            rule="needles",
            outcome=Outcome.PASS if len(found) == len(sought) else Outcome.FAIL,
            observed=len(found),
            limit=len(sought),
            unit="needles",
            text=f"{len(found)} of the {len(sought)} needles that the baseline finds were found",
        )
    ]


def _odd(row: _Row) -> list[Reason]:
    """An odd input that the baseline answered or refused in order."""
    q, b, c = row.question, row.first, row.candidate
    if b is None or c is None:
        return []
    if b.status != c.status:
        what = "; an over-long input must be refused" if q.over_long and _served(c) else ""
        text = f"{q.id}: baseline answers {_status(b)}, candidate {_status(c)}{what}"
        return [Reason(rule="odd inputs", outcome=Outcome.FAIL, text=text)]
    if q.over_long and _served(b):
        text = f"{q.id}: both answer what was to exceed the context, so nothing shows that such a one is refused"
        return [Reason(rule="odd inputs", outcome=Outcome.INCONCLUSIVE, text=text)]
    return []


def _says_nothing(baseline_failed: Sequence[_Row], needles: Sequence[_Row], sought: Sequence[_Row]) -> list[Reason]:
    """What the baseline itself fails: shown, and no verdict on the change."""
    reasons = []
    if baseline_failed:
        which = ", ".join(
            f"{r.question.id} ({_status(r.again if _served(r.first) else r.first)})" for r in baseline_failed
        )
        text = f"the baseline itself does not answer {which}: nothing there is held against the change"
        reasons.append(Reason(rule="baseline", outcome=Outcome.INCONCLUSIVE, text=text))
    if needles and not sought:
        text = f"the baseline finds none of {len(needles)} needles, so a needle test says nothing of this change"
        reasons.append(Reason(rule="needles", outcome=Outcome.INCONCLUSIVE, text=text))
    return reasons
