"""The only writer of Prefect artifacts and events.

Artifacts are for eyes: every result already lies in S3 when one is written, so a Prefect server that is
away costs a picture and never a result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.logging import get_run_logger

from infra.quality.suite import GateResult
from tasks.baseline.records import BaselineReport
from tasks.bottleneck.records import BottleneckReport
from tasks.canary.records import CanaryVerdict
from tasks.hypothesis.records import Hypotheses
from tasks.sandbox.records import SandboxVerdict, TrialResult


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:120]


def _table(key: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    try:
        create_table_artifact(key=_key(key), table=[dict(r) for r in rows], description=description)
    except Exception as error:
        get_run_logger().warning("artifact %s not written: %s", key, error)


def _markdown(key: str, text: str, description: str) -> None:
    try:
        create_markdown_artifact(key=_key(key), markdown=text, description=description)
    except Exception as error:
        get_run_logger().warning("artifact %s not written: %s", key, error)


def event(name: str, campaign: str, **payload: Any) -> None:
    """Tell the orchestrator what happened, for automations."""
    emit_event(
        event=f"ratchet.{name}", resource={"prefect.resource.id": f"ratchet.campaign.{campaign}"}, payload=payload
    )


def gate(campaign: str, result: GateResult) -> None:
    """The result of a data-quality gate."""
    rows = [
        {
            "gate": result.name,
            "passed": result.passed,
            "rows": result.rows,
            "evaluated": result.evaluated,
            "declared": result.declared,
            "failures": "; ".join(result.failures) or "none",
        }
    ]
    _table(f"{campaign}-gate-{result.name}", rows, f"Data-quality gate {result.name}")


def baseline(report: BaselineReport) -> None:
    """The baseline with its spread, and what the sandbox can tell."""
    rows = [
        {
            "metric": m.name,
            "value": m.reading.text(),
            "spread": "unknown" if m.spread_pct is None else f"{m.spread_pct:.1f} %",
            "source": m.reading.source,
        }
        for m in report.metrics
    ]
    _table(
        f"{report.campaign}-baseline",
        rows,
        f"Production baseline from Prometheus. Sandbox: {report.calibration.sentence}",
    )


def bottleneck(report: BottleneckReport) -> None:
    """Evidence and ranked candidates, with the utilisation curve as a bar of text."""
    lines = ["| evidence | reading | meaning |", "|---|---|---|"]
    lines += [f"| `{i.id}` | {i.reading.text()} | {i.meaning} |" for i in report.evidence.items]
    lines += [
        "",
        f"Requests running: `{sparkline([v for _, v in report.evidence.running_series])}`",
        "",
        f"Requests waiting: `{sparkline([v for _, v in report.evidence.waiting_series])}`",
        "",
    ]
    for number, c in enumerate(report.candidates, 1):
        gain = "uncertain" if c.expected_gain_pct is None else f"{c.expected_gain_pct:+.0f} %"
        lines += [
            f"### {number}. {c.name} ({gain}, risk {c.risk:.1f}, by {c.by})",
            c.claim,
            f"- cites {', '.join(c.cites)}",
            f"- confirm: {c.confirm}",
            f"- wrong if: {c.falsify}",
        ]
    _markdown(f"{report.campaign}-bottleneck", "\n".join(lines), "Bottleneck evidence")


def hypotheses(found: Hypotheses) -> None:
    """One card per hypothesis."""
    lines: list[str] = []
    for h in found.hypotheses:
        lines += [
            f"### {h.id}: {h.sentence()}",
            f"- from {h.source}, for bottleneck {h.bottleneck}",
            f"- holds if {h.holds_if}",
            f"- worst case: {h.worst_case}",
            f"- may get worse: {', '.join(h.may_get_worse) or 'nothing known'}",
            f"- may change outputs: {'yes' if h.may_change_outputs else 'no'}",
            f"- back: {h.rollback}",
            "",
        ]
    lines += [f"- refused: `{r.knob}={r.value}` ({r.rule}): {r.text}" for r in found.refused]
    _markdown(f"{found.campaign}-hypotheses", "\n".join(lines) or "no hypothesis", "Hypothesis cards")


def trials(campaign: str, results: Sequence[TrialResult], verdict: SandboxVerdict | None = None) -> None:
    """Every trial with its intervals."""
    rows = []
    for trial in results:
        c = trial.comparison("throughput_per_gpu")
        interval = "–" if c is None or c.low_pct is None else f"{c.low_pct:+.1f} … {c.high_pct:+.1f} %"
        change = "not measured" if c is None or c.change_pct is None else f"{c.change_pct:+.1f} %"
        pairs = "–" if c is None else f"{c.pairs}, {c.design}"
        rows.append(
            {
                "trial": trial.trial_id,
                "kind": trial.kind,
                "changes": str(trial.changes),
                "class": trial.outcome_class.value,
                "throughput": change,
                "interval": interval,
                "pairs": pairs,
                "why": "; ".join(r.text for r in trial.judgement.reasons[:3]),
            }
        )
    text = "Trials" if verdict is None else f"Trials; verdict {verdict.judgement.outcome.value}"
    _table(f"{campaign}-trials", rows, text)


def canary(verdict: CanaryVerdict) -> None:
    """The canary's timeline: one row per decision."""
    rows = [
        {
            "at": datetime.fromtimestamp(d.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            "step": d.step + 1,
            "share": f"{d.share:.1%}",
            "action": d.action,
            "outcome": d.judgement.outcome.value,
            "smallest harm it can exclude": d.smallest_excludable_harm,
            "why": "; ".join(r.text for r in d.judgement.reasons[:3]),
        }
        for d in verdict.decisions
    ]
    _table(f"{verdict.rollout_id}-canary", rows, f"Canary timeline: {verdict.phase.value}")


def sparkline(values: Sequence[float]) -> str:
    """A series as one line of block characters, at most 80 wide."""
    if not values:
        return "no data"
    step = max(1, len(values) // 80)
    picked = values[::step]
    top = max(picked) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(v / top * 7.999))] for v in picked)
