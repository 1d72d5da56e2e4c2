"""Plots as inline SVG: the report is one file and needs no script."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

INK, ACCENT, SOFT, BAD = "#1d2733", "#1c7c7d", "#9fb3c0", "#b4462f"
plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
    }
)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.tight_layout()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def before_after(pairs: Sequence[tuple[str, str, str, float | None, float | None]]) -> str:
    """Two bars for each metric, each metric on its own axis.

    Args:
        pairs: (metric, unit, which direction is better, before, after); None was not measured.
    """
    figure, axes = plt.subplots(1, len(pairs), figsize=(7.2, 2.6), squeeze=False)
    for axis, (name, unit, better, *values) in zip(axes[0], pairs, strict=True):
        highest = max((v for v in values if v is not None), default=0.0) or 1.0
        for position, (bar, colour) in enumerate(zip(values, (SOFT, ACCENT), strict=True)):
            axis.bar([position], [bar or 0.0], color=colour, width=0.7)
            text = "not measured" if bar is None else f"{bar:,.1f} {unit}"
            axis.text(position, (bar or 0.0) + highest * 0.03, text, ha="center", va="bottom", fontsize=8)
        axis.set_xticks([0, 1], ["before", "after"])
        axis.set_xlim(-0.7, 1.7)
        axis.set_ylim(0, highest * 1.18)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.set_title(f"{name}\n{better} is better", fontsize=8)
    return _svg(figure)


def latency_distributions(series: Mapping[str, Sequence[float]], title: str) -> str:
    """Share of requests at or below a latency, one curve per configuration; milliseconds."""
    figure, axis = plt.subplots(figsize=(7.2, 3.0))
    for number, (name, values) in enumerate(series.items()):
        ordered = sorted(values)
        share = [(i + 1) / len(ordered) * 100 for i in range(len(ordered))]
        axis.step(
            ordered,
            share,
            where="post",
            label=f"{name} (n={len(ordered)})",
            color=[SOFT, ACCENT, INK, BAD][number % 4],
            linewidth=1.6,
        )
    axis.set_xlabel("end-to-end latency, ms")
    axis.set_ylabel("requests at or below, %")
    axis.set_title(title, loc="left")
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


def search_progress(rows: Sequence[tuple[str, float | None, float | None, float | None, bool]]) -> str:
    """Throughput change of each trial in order, with its interval: (name, change, low, high, passed)."""
    figure, axis = plt.subplots(figsize=(7.2, 0.5 + 0.42 * max(2, len(rows))))
    for position, (name, change, low, high, passed) in enumerate(rows):
        y = -position
        colour = ACCENT if passed else BAD
        if change is None:
            axis.text(0.5, y, "not measured", va="center", fontsize=8, color=BAD)
        else:
            axis.plot([change], [y], "o", color=colour)
            if low is not None and high is not None:
                axis.plot([low, high], [y, y], "-", color=colour, linewidth=2, alpha=0.6)
        axis.text(-0.01, y, name, va="center", ha="right", fontsize=8, transform=axis.get_yaxis_transform())
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks([])
    axis.set_ylim(-len(rows) + 0.5, 0.5)
    axis.set_xlabel("throughput against the baseline, % (bar: interval)")
    return _svg(figure)


def utilisation(running: Sequence[tuple[float, float]], waiting: Sequence[tuple[float, float]]) -> str:
    """Requests running and waiting over the baseline's window."""
    figure, axis = plt.subplots(figsize=(7.2, 2.4))
    if waiting:
        axis.fill_between(*zip(*waiting, strict=True), color=SOFT, alpha=0.6, label="waiting", step="post")
    if running:
        axis.step(*zip(*running, strict=True), color=ACCENT, where="post", label="running")
    axis.set_xlabel("second of the window")
    axis.set_ylabel("requests")
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


def stage_times(seconds: Mapping[str, float]) -> str:
    """Where the time went, seconds a stage."""
    figure, axis = plt.subplots(figsize=(7.2, 0.6 + 0.3 * max(1, len(seconds))))
    names = list(seconds)[::-1]
    axis.barh(names, [seconds[n] for n in names], color=ACCENT)
    for name in names:
        axis.text(seconds[name], name, f" {seconds[name]:.0f} s", va="center", fontsize=8)
    axis.set_xlabel("seconds")
    return _svg(figure)
