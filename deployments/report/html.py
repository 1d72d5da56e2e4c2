"""Renders one campaign as one self-contained HTML file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from deployments.report import plots
from deployments.report.figures import figures
from deployments.report.story import Story
from infra.sampling.files import write_atomically
from infra.store import ObjectStore
from tasks.sandbox.records import TrialResult
from tasks.shared.records import Outcome

SHOWN = ("throughput_per_gpu", "p50_latency", "p90_latency", "p99_latency", "ttft_p99", "tpot_p99", "error_rate")


def _pct(value: float | None) -> str:
    return "not measured" if value is None else f"{value:+.1f} %"


def _change(trial: TrialResult, metric: str) -> str:
    comparison = trial.comparison(metric)
    return _pct(comparison.change_pct if comparison else None)


def _synergy(trial: TrialResult) -> str:
    comparison = trial.comparison("throughput_per_gpu")
    if trial.predicted_change_pct is None or comparison is None or comparison.change_pct is None:
        return "–"
    return f"{comparison.change_pct - trial.predicted_change_pct:+.1f} pp"


def _latencies(store: ObjectStore, trial: TrialResult) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for run in trial.runs:
        if run.workload != "recorded" or not run.requests_key or not store.exists(run.requests_key):
            continue
        frame = pl.read_parquet(io.BytesIO(store.get(run.requests_key))).filter(pl.col("status") == "ok")
        values = ((frame["end_s"] - frame["planned_s"]) * 1000).to_list()
        series.setdefault(run.side, []).extend(values)
    return {k: v for k, v in series.items() if v}


def _production(data: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    rows = []
    units = data["production"]["units"]
    for metric, before in data["production"]["before"].items():
        after = data["production"]["after"].get(metric)
        change = "–"
        if before is not None and after is not None and before:
            change = _pct((after - before) / before * 100)
        rows.append(
            (
                f"{metric}, {units[metric]}",
                "unknown" if before is None else f"{before:,.1f}",
                "not measured" if after is None else f"{after:,.1f}",
                change,
            )
        )
    return rows


def _cards(story: Story, data: dict[str, Any], drill_ms: float | None) -> list[tuple[str, str, str]]:
    adopted = data["adopted"]
    change = data["production_answer_pct"]
    return [
        (
            "outcome",
            story.rollout.phase.value
            if story.rollout
            else (story.verdict.judgement.outcome.value if story.verdict else "not finished"),
            "adopted " + ", ".join(f"{k}={v}" for k, v in adopted.items()) if adopted else "nothing adopted",
        ),
        ("production throughput", _pct(change), "saturated seconds, Prometheus"),
        ("sandbox predicted", _pct(data["sandbox_prediction_pct"]), "held-out sample, after the learned discount"),
        (
            "rollback drill",
            "not drilled" if drill_ms is None else f"{drill_ms:.0f} ms",
            "decision to last new request on the canary",
        ),
    ]


def render(store: ObjectStore, story: Story, *, seed: int | None = None, drill_ms: float | None = None) -> str:
    """The report as HTML text."""
    data = figures(story, seed=seed, drill_ms=drill_ms)
    baseline_rows = []
    if story.baseline:
        for m in story.baseline.metrics:
            floor = story.baseline.floor_pct(m.name)
            baseline_rows.append(
                (
                    m.name,
                    m.reading.text(),
                    "unknown" if m.spread_pct is None else f"{m.spread_pct:.1f} %",
                    "–" if floor is None else f"{floor:.1f} %",
                )
            )
    rows = []
    for t in story.trials:
        c = t.comparison("throughput_per_gpu")
        rows.append(
            (
                ", ".join(f"{k}={v}" for k, v in t.changes.items())[:60] + f" [{t.kind}]",
                c.change_pct if c else None,
                c.low_pct if c else None,
                c.high_pct if c else None,
                t.judgement.outcome is Outcome.PASS,
            )
        )
    shown = story.verdict.held_out if story.verdict and story.verdict.held_out else None
    series = _latencies(store, shown) if shown else {}
    evidence = story.bottleneck.evidence if story.bottleneck else None
    pictures = {
        "search": plots.search_progress(rows) if rows else "",
        "latency": plots.latency_distributions(series, "Baseline and winner, held-out sample") if series else "",
        "utilisation": plots.utilisation(evidence.running_series, evidence.waiting_series) if evidence else "",
        "stages": plots.stage_times(data["stage_seconds"]) if data["stage_seconds"] else "",
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("page.html.j2")
    return page.render(
        f=data,
        s=story,
        plots=pictures,
        trials=story.trials,
        production=_production(data),
        baseline=baseline_rows,
        cards=_cards(story, data, drill_ms),
        decisions=story.rollout.decisions if story.rollout else (),
        drill=None
        if drill_ms is None
        else f"{drill_ms:.0f} ms from the decision to the last new request on the canary",
        pct=_pct,
        change=_change,
        synergy=_synergy,
    )


def write_text_atomically(path: Path, text: str) -> None:
    """A whole file or none. Raises BadInput when the place cannot be written or its disk is full."""
    write_atomically(path, text.encode())
