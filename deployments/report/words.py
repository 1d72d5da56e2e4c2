"""The report's words: metrics, values of knobs and the title, as a person reads them. Pure."""

from __future__ import annotations

import re

from deployments.report.story import Story
from tasks.sandbox.records import MetricComparison
from tasks.shared.records import Outcome

METRICS = {
    "throughput_per_gpu": "throughput, output tokens/s",
    "p50_latency": "P50 latency",
    "p90_latency": "P90 latency",
    "p99_latency": "P99 latency",
    "ttft_p99": "P99 time to first token",
    "tpot_p99": "P99 time per output token",
    "error_rate": "errors",
}
"""Names of metrics as labels. Any other metric keeps its own name."""

IN_A_SENTENCE = {**METRICS, "throughput_per_gpu": "throughput"}

MAX_WHOLE = 1e15
"""Beyond this a float is no longer exact to the integer, and its digits are not worth a line."""

_NAMES = re.compile(rf"\b({'|'.join(METRICS)})\b")


def metric(name: str) -> str:
    """A metric's name as a label; a name without words of its own stays as it is."""
    return METRICS.get(name, name)


def plain(text: str) -> str:
    """A sentence with the names of metrics in words."""
    return _NAMES.sub(lambda found: IN_A_SENTENCE[found[1]], text)


def value(given: bool | int | float | str | None) -> str:
    """A knob's value: on or off, four significant digits at most of a fraction, `default` where none was passed."""
    if given is None:
        return "default"
    if isinstance(given, bool):
        return "on" if given else "off"
    if isinstance(given, float):
        shown = given if given.is_integer() else float(f"{given:.4g}")
        return f"{shown:.0f}" if shown.is_integer() and abs(shown) < MAX_WHOLE else f"{shown:.4g}"
    return str(given)


def changes(changed: dict[str, bool | int | float | str]) -> str:
    """Changed knobs on one line: `max_num_seqs=8, enable_prefix_caching=on`."""
    return ", ".join(f"{name}={value(to)}" for name, to in changed.items())


def percent(change: float | None) -> str:
    """A relative change with its sign."""
    return "not measured" if change is None else f"{change:+.1f} %"


def ratio(comparison: MetricComparison | None) -> str:
    """A change with its interval and what is behind it: `+9.1 % (+8.0 to +10.2 %), 3 pairs, duet`."""
    if comparison is None or comparison.change_pct is None:
        return percent(None)
    text = percent(comparison.change_pct)
    if comparison.low_pct is not None and comparison.high_pct is not None:
        text += f" ({comparison.low_pct:+.1f} to {comparison.high_pct:+.1f} %)"
    if comparison.pairs:
        text += f", {comparison.pairs} pair{'' if comparison.pairs == 1 else 's'}"
    return f"{text}, {comparison.design}" if comparison.design else text


def title(story: Story) -> str:
    """The target and what changes on it: `m: max_num_seqs 2 -> 8`."""
    if story.plan is None:
        return f"{story.target.model}: nothing adopted"
    before = story.plan.baseline_config.args
    moved = (f"{name} {value(before.get(name))} -> {value(to)}" for name, to in story.plan.changes.items())
    return f"{story.target.model}: {', '.join(moved)}"


def subtitle(story: Story) -> str:
    """One sentence under the title: why nothing is adopted, or how far the change has come."""
    if story.plan is not None:
        return _progress(story)
    if story.verdict is None:
        return "The campaign ended before a verdict."
    said = story.verdict.judgement
    against = [plain(r.text).rstrip(".") for r in said.reasons if r.outcome is not Outcome.PASS]
    if against:
        return f"Not adopted since {'; '.join(against[:2])}."
    if said.outcome is Outcome.PASS:
        return "The verdict passed, and no plan was made from it."
    return f"The verdict is {said.outcome.value}, and it gives no reason."


def _progress(story: Story) -> str:
    if story.canary is not None and story.canary.phase.value == "completed":
        return "Adopted: production serves with it."
    if story.rollout is not None:
        tail = f": {plain(story.rollout.reason).rstrip('.')}" if story.rollout.reason else ""
        return f"Proven in the sandbox, not adopted; the rollout is {story.rollout.phase.value}{tail}."
    if story.approval is not None and story.approval.decision == "reject":
        return f"Proven in the sandbox, not adopted; {story.approval.by} rejected the plan."
    if story.approval is None:
        return "Proven in the sandbox, not adopted yet; the plan waits for approval."
    return "Proven in the sandbox, not adopted yet; the plan is approved and no rollout has begun."
