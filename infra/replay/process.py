"""The replay as a process of its own, so that the client shares no core with the engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from infra.errors import BadInput, RatchetError
from infra.replay.fork_server import SERVERS
from infra.replay.records import ReplayOptions, ReplayResult
from infra.replay.runner import STOP_FILE, SUMMARY_FILE, load_result


class ReplayProcessFailed(RatchetError):
    """The replay's process ended without a result."""


class ReplayTimedOut(ReplayProcessFailed):
    """It took longer than it was given, and is gone."""


def run_replay_process(
    sample_path: Path,
    base_url: str,
    model: str,
    out_dir: Path,
    *,
    cores: Sequence[int] = (1,),
    options: ReplayOptions | None = None,
    process_timeout_s: float = 3600.0,
    lane: str = "",
) -> ReplayResult:
    """`replay` in a child pinned to `cores` (empty: not pinned); its files are left in `out_dir`.

    Replays of two `lane`s run side by side, those of one wait for each other.

    Raises BadInput (sample, options, a core that is not there), ReplayProcessFailed (the child died), ReplayTimedOut
    (it took longer than `process_timeout_s`). The child is gone when this returns.
    """
    (out_dir / STOP_FILE).unlink(missing_ok=True)
    (out_dir / SUMMARY_FILE).unlink(missing_ok=True)  # an old summary must not pass for this run's
    argv = [
        "--sample", str(sample_path.absolute()), "--base-url", base_url, "--model", model,
        "--out", str(out_dir.absolute()), "--cores", ",".join(str(core) for core in cores),
        "--options", (options or ReplayOptions()).model_dump_json(), "--parent", str(os.getpid()),
    ]  # fmt: skip
    try:
        code, message = SERVERS[lane].run(argv, process_timeout_s)
    except TimeoutError as error:
        raise ReplayTimedOut(
            f"the replay of {sample_path} took longer than {process_timeout_s:g} s",
            remedy="Replay a shorter sample or raise the limit",
        ) from error
    if code == 2:
        raise BadInput(message.splitlines()[-1] if message else "the replay refused its input")
    if code != 0:
        raise ReplayProcessFailed(f"the replay of {sample_path} ended with {code}: {message[-500:]}")
    return load_result(out_dir)
