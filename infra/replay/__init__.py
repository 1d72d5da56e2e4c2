"""Replay of a sample against a server: in git, fixed, and hashed with every result."""

from infra.replay.code_hash import replay_code_hash
from infra.replay.comparison import Coverage, StratumCoverage, compare_coverage, goodput_share
from infra.replay.process import ReplayProcessFailed, run_replay_process
from infra.replay.records import (
    REQUEST_COLUMNS,
    STATUSES,
    Percentiles,
    ReplayLimits,
    ReplayOptions,
    ReplayResult,
    ReplaySummary,
)
from infra.replay.results import latencies, percentiles
from infra.replay.runner import load_result, replay, run_replay, save_result

__all__ = [
    "REQUEST_COLUMNS",
    "STATUSES",
    "Coverage",
    "Percentiles",
    "ReplayLimits",
    "ReplayOptions",
    "ReplayProcessFailed",
    "ReplayResult",
    "ReplaySummary",
    "StratumCoverage",
    "compare_coverage",
    "goodput_share",
    "latencies",
    "load_result",
    "percentiles",
    "replay",
    "replay_code_hash",
    "run_replay",
    "run_replay_process",
    "save_result",
]  # fmt: skip
