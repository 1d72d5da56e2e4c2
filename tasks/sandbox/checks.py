"""Small parts of a trial: a line for people, the comparison of outputs."""

from __future__ import annotations

from collections.abc import Mapping

from infra.bench.correctness import Answer, Question, ask, needle_question, odd_questions, plain_questions
from infra.bench.engines import Bench, Sides
from tasks.hypothesis.records import Scalar
from tasks.sandbox.correctness import judge_outputs
from tasks.sandbox.records import CorrectnessReport


def changes_text(changes: Mapping[str, Scalar]) -> str:
    """`a=1, b=2`."""
    return ", ".join(f"{k}={v}" for k, v in changes.items())


def questions(seed: int, context_tokens: int) -> tuple[Question, ...]:
    """Plain questions, needles at a quarter and at half of the context, odd inputs."""
    needles = tuple(needle_question(tokens, seed) for tokens in (context_tokens // 4, context_tokens // 2))
    return (*plain_questions(), *needles, *odd_questions(context_tokens))


def compare_outputs(bench: Bench, sides: Sides, seed: int) -> CorrectnessReport:
    """Both engines asked the same; the baseline twice, with other batches the second time."""
    asked = questions(seed, bench.context_tokens)
    first = ask(sides.baseline, asked, concurrency=2)
    again: tuple[Answer, ...] = ask(sides.baseline, [q for q in asked if not q.odd and not q.needle], concurrency=4)
    candidate = ask(sides.candidate, asked, concurrency=2)
    return judge_outputs(asked, first, again, candidate)
