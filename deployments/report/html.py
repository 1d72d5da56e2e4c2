"""Renders one campaign as one self-contained HTML file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from deployments.report import plots, words
from deployments.report.figures import figures
from deployments.report.story import Story
from infra.sampling.files import write_atomically
from infra.store import ObjectStore
from tasks.sandbox.records import TrialResult
from tasks.shared.records import Outcome

DRAWN = (
    ("throughput_per_gpu", "throughput", "tokens/s", "higher"),
    ("p99_latency", "P99 latency", "ms", "lower"),
    ("ttft_p99", "P99 time to first token", "ms", "lower"),
)
"""Production's metrics that are drawn: key, title, unit, which direction is better."""


def _change(trial: TrialResult, metric: str) -> str:
    comparison = trial.comparison(metric)
    return words.percent(comparison.change_pct if comparison else None)


def _throughput(trial: TrialResult) -> str:
    return words.ratio(trial.comparison("throughput_per_gpu"))


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
            change = words.percent((after - before) / before * 100)
        # Throughput's words hold its unit; the page says below that saturated seconds count.
        label = words.metric(metric) if metric == "throughput_per_gpu" else f"{words.metric(metric)}, {units[metric]}"
        rows.append(
            (
                label,
                "unknown" if before is None else f"{before:,.1f}",
                "not measured" if after is None else f"{after:,.1f}",
                change,
            )
        )
    return rows


def _before_after(data: dict[str, Any]) -> str:
    before, after = data["production"]["before"], data["production"]["after"]
    pairs = [
        (name, unit, better, before.get(key), after.get(key))
        for key, name, unit, better in DRAWN
        if before.get(key) is not None or after.get(key) is not None
    ]
    return plots.before_after(pairs) if pairs else ""


def how_measured(story: Story) -> tuple[str, str]:
    """The sandbox's sentence on what it can tell, and its design; both empty where there is no baseline."""
    if story.baseline is None:
        return "", ""
    return story.baseline.calibration.sentence, story.baseline.calibration.design


def _cards(story: Story, data: dict[str, Any], drill_ms: float | None) -> list[tuple[str, str, str]]:
    adopted = data["adopted"]
    change = data["production_answer_pct"]
    return [
        (
            "outcome",
            story.rollout.phase.value
            if story.rollout
            else (story.verdict.judgement.outcome.value if story.verdict else "not finished"),
            f"adopted {words.changes(adopted)}" if adopted else "nothing adopted",
        ),
        ("production throughput", words.percent(change), "saturated seconds, Prometheus"),
        (
            "sandbox predicted",
            words.percent(data["sandbox_prediction_pct"]),
            "held-out sample, after the learned discount",
        ),
        (
            "rollback drill",
            "not drilled" if drill_ms is None else f"{drill_ms:.0f} ms",
            "decision to last new request on the canary",
        ),
    ]


def page_template() -> jinja2.Template:
    """The page; the report's words are its filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"value": words.value, "plain": words.plain}
    return environment.get_template("page.html.j2")


def render(store: ObjectStore, story: Story, *, seed: int | None = None, drill_ms: float | None = None) -> str:
    """The report as HTML text."""
    data = figures(story, seed=seed, drill_ms=drill_ms)
    baseline_rows = [
        (words.metric(m.name), m.reading.text(), "unknown" if m.spread_pct is None else f"{m.spread_pct:.1f} %")
        for m in (story.baseline.metrics if story.baseline else ())
    ]
    rows = []
    for t in story.trials:
        c = t.comparison("throughput_per_gpu")
        rows.append(
            (
                f"{words.changes(t.changes)[:60]} [{t.kind}]",
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
        "before_after": _before_after(data),
        "search": plots.search_progress(rows) if rows else "",
        "latency": plots.latency_distributions(series, "Baseline and winner, held-out sample") if series else "",
        "utilisation": plots.utilisation(evidence.running_series, evidence.waiting_series) if evidence else "",
        "stages": plots.stage_times(data["stage_seconds"]) if data["stage_seconds"] else "",
    }
    sentence, design = how_measured(story)
    return page_template().render(
        title=words.title(story),
        subtitle=words.subtitle(story),
        measured=sentence,
        design=design,
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
        pct=words.percent,
        change=_change,
        throughput=_throughput,
        synergy=_synergy,
    )


def write_text_atomically(path: Path, text: str) -> None:
    """A whole file or none. Raises BadInput when the place cannot be written or its disk is full."""
    write_atomically(path, text.encode())
