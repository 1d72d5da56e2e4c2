"""One measured run against one engine, and two engines measured turn by turn on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import requests
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, Field

from infra.bench.conditions import ConditionsWatch, RunConditions
from infra.bench.workload import STRATUM_OF, Workload, WorkloadPlan
from infra.errors import RatchetError, Unreachable
from infra.replay.process import ReplayTimedOut, run_replay_process
from infra.replay.records import ReplayResult

Side = Literal["baseline", "candidate"]

MOST_AGAIN = 2
"""How often a void run is measured again before its trial is left without it."""


class SideFailed(RatchetError):
    """A run against one side did not come to its end."""

    def __init__(self, side: Side, fault: RatchetError) -> None:
        super().__init__(f"{side}: {fault.message}", remedy=fault.remedy)
        self.side: Side = side


class Served(BaseModel):
    """An engine that can be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root_url: str = Field(description="without /v1, e.g. http://127.0.0.1:18200")
    model: str = Field(description="the served name that only this engine answers to")
    pid: int


class MeasuredRun(BaseModel):
    """One run: what the client saw, what the server counted, what else the machine did."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    side: Side
    workload: Workload
    repeat: int
    result: ReplayResult
    requests_path: Path
    prefix_hit_rate: float | None = Field(description="hits / queries over warm-up and run, server's counters")
    preemptions: float | None
    conditions: RunConditions


def server_counters(served: Served) -> dict[str, float]:
    """Sums over all series of each counter in the engine's /metrics.

    Raises:
        Unreachable: the engine does not answer.
    """
    try:
        answer = requests.get(f"{served.root_url}/metrics", timeout=10)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise Unreachable(f"the engine at {served.root_url} gives no metrics: {error}") from None
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if family.type == "counter" and sample.name.endswith("_total"):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def stratum_path(sample_path: Path, stratum: str) -> Path:
    """Where one stratum of a sample lies beside the whole."""
    return sample_path.with_name(f"{sample_path.stem}-{stratum}{sample_path.suffix}")


def cold_cache(served: Served) -> None:
    """Empty the prefix cache, so that every run of both sides starts alike (case LG5).

    Raises:
        Unreachable: the engine did not empty it.
    """
    try:
        answer = requests.post(f"{served.root_url}/reset_prefix_cache", timeout=30)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise Unreachable(f"the engine at {served.root_url} did not empty its prefix cache: {error}") from None


def _delta(before: dict[str, float], after: dict[str, float], name: str) -> float | None:
    if name not in after:
        return None
    return after[name] - before.get(name, 0.0)


def measure_run(
    served: Served,
    side: Side,
    plan: WorkloadPlan,
    repeat: int,
    sample_path: Path,
    out_dir: Path,
    *,
    client_cores: Sequence[int],
    own_pids: Sequence[int] = (),
) -> MeasuredRun:
    """Cold cache, warm-up, run. The client is a process of its own on its own cores.

    Args:
        sample_path: the whole sample; a workload of one stratum replays `stratum_path` beside it.

    Raises:
        Unreachable, ReplayProcessFailed, BadInput: nothing was measured.
    """
    cold_cache(served)
    before = server_counters(served)
    folder = out_dir / f"{side}-{plan.workload}-{repeat}"
    folder.mkdir(parents=True, exist_ok=True)
    stratum = STRATUM_OF.get(plan.workload)
    watch = ConditionsWatch([served.pid, *own_pids])
    result = run_replay_process(
        sample_path if stratum is None else stratum_path(sample_path, stratum),
        f"{served.root_url}/v1",
        served.model,
        folder,
        cores=client_cores,
        options=plan.options,
        process_timeout_s=plan.limit_s,
    )
    conditions = watch.finish()
    after = server_counters(served)
    queries = _delta(before, after, "vllm:prefix_cache_queries_total")
    hits = _delta(before, after, "vllm:prefix_cache_hits_total")
    return MeasuredRun(
        side=side,
        workload=plan.workload,
        repeat=repeat,
        result=result,
        requests_path=folder / "requests.parquet",
        prefix_hit_rate=None if queries is None or hits is None else (hits / queries if queries else 0.0),
        preemptions=_delta(before, after, "vllm:num_preemptions_total"),
        conditions=conditions,
    )


def measure_pair(
    baseline: Served,
    candidate: Served,
    plans: Sequence[WorkloadPlan],
    sample_path: Path,
    out_dir: Path,
    *,
    client_cores: Sequence[int],
    void: Callable[[MeasuredRun], bool] | None = None,
    stop_after: Callable[[list[MeasuredRun]], bool] | None = None,
    on_run: Callable[[MeasuredRun], None] | None = None,
) -> Iterator[MeasuredRun]:
    """Baseline and candidate in turn; the side that goes first alternates, so that drift hits both.

    Args:
        void: whether a run counts for nothing, since the machine was disturbed; it is given out all the same and
            measured again at once, at most MOST_AGAIN times for each run.
        stop_after: asked after every whole repeat with all runs so far; True ends the pair early.

    Raises:
        SideFailed: an engine stopped to answer, or a run took longer than its limit; it names the side.
        ReplayProcessFailed, BadInput: as `measure_run`.
    """
    done: list[MeasuredRun] = []
    for repeat in range(max(plan.repeats for plan in plans)):
        order: list[tuple[Side, Served]] = [("baseline", baseline), ("candidate", candidate)]
        if repeat % 2:
            order.reverse()
        for plan in plans:
            if repeat >= plan.repeats:
                continue
            for side, served in order:
                for again in range(1 + MOST_AGAIN):
                    try:
                        run = measure_run(
                            served,
                            side,
                            plan,
                            repeat,
                            sample_path,
                            out_dir / str(again),
                            client_cores=client_cores,
                            own_pids=(baseline.pid, candidate.pid),
                        )
                    except (Unreachable, ReplayTimedOut) as fault:
                        raise SideFailed(side, fault) from fault
                    done.append(run)
                    if on_run:
                        on_run(run)
                    yield run
                    if void is None or not void(run):
                        break
        if stop_after is not None and stop_after(done):
            return
