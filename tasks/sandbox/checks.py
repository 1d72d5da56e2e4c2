"""Small parts of a trial: lines for people, runs by repeat, the comparison of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.bench.correctness import Answer, Question, ask, needle_question, odd_questions, plain_questions
from infra.bench.engines import Bench, Sides
from infra.bench.measure import MeasuredRun
from tasks.hypothesis.records import Scalar
from tasks.sandbox.comparison import THROUGHPUT_OF
from tasks.sandbox.correctness import judge_outputs
from tasks.sandbox.records import CorrectnessReport, RunReadings
from tasks.shared.records import Reading


def changes_text(changes: Mapping[str, Scalar]) -> str:
    """`a=1, b=2`."""
    return ", ".join(f"{k}={v}" for k, v in changes.items())


def run_line(run: MeasuredRun) -> str:
    """One run for the log of a person who watches."""
    s = run.result.summary
    rate = f"{s.output_tokens_per_s or 0:.1f} tok/s" if s.mode == "closed" else f"p99 {s.e2e_ms.p99 or 0:.0f} ms"
    valid = "" if s.valid else f" INVALID: {'; '.join(s.invalid_reasons)}"
    hits = "" if run.prefix_hit_rate is None else f", prefix hits {run.prefix_hit_rate:.0%}"
    return (
        f"{run.side} {run.workload} {run.repeat + 1}: {s.ok}/{s.requests} served, {rate}{hits}, "
        f"{s.duration_s:.1f} s{valid}"
    )


def by_repeat(runs: Sequence[RunReadings], side: str) -> list[dict[str, Reading]]:
    """One side's metrics by repeat: throughput from the run of its load, all else from the recorded one."""
    merged: dict[int, dict[str, Reading]] = {}
    for run in runs:
        if run.side != side or not run.valid:
            continue
        into = merged.setdefault(run.repeat, {})
        if run.workload == "recorded":
            into.update(run.metrics)
        elif (name := THROUGHPUT_OF[run.workload]) in run.metrics:
            into[name] = run.metrics[name]
    return [merged[k] for k in sorted(merged)]


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
