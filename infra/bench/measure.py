"""What is asked of an engine that is measured: its counters, an empty cache, and whose fault it was when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import requests
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, Field

from infra.errors import RatchetError, Unreachable

Side = Literal["baseline", "candidate"]


class SideFailed(RatchetError):
    """What was measured on one side did not come to its end."""

    def __init__(self, side: Side, fault: RatchetError) -> None:
        super().__init__(f"{side}: {fault.message}", remedy=fault.remedy)
        self.side: Side = side


class Served(BaseModel):
    """An engine that can be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root_url: str = Field(description="without /v1, e.g. http://127.0.0.1:18200")
    model: str = Field(description="the served name that only this engine answers to")
    pid: int


class Counters(BaseModel):
    """The engine's own counts; None where it exports no such counter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix_queries: float | None = Field(default=None, description="prompt tokens looked up in the prefix cache")
    prefix_hits: float | None = None
    preemptions: float | None = None

    def since(self, earlier: Counters) -> Counters:
        """What was counted between two readings."""

        def grown(now: float | None, then: float | None) -> float | None:
            return None if now is None else now - (then or 0.0)

        return Counters(
            prefix_queries=grown(self.prefix_queries, earlier.prefix_queries),
            prefix_hits=grown(self.prefix_hits, earlier.prefix_hits),
            preemptions=grown(self.preemptions, earlier.preemptions),
        )


def counters(served: Served) -> Counters:
    """The engine's counters as they stand, each summed over its series.

    Raises:
        Unreachable: the engine does not answer.
    """
    try:
        answer = requests.get(f"{served.root_url}/metrics", timeout=30)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise Unreachable(f"the engine at {served.root_url} gives no metrics: {error}") from None
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if family.type == "counter" and sample.name.endswith("_total"):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Counters(
        prefix_queries=sums.get("vllm:prefix_cache_queries_total"),
        prefix_hits=sums.get("vllm:prefix_cache_hits_total"),
        preemptions=sums.get("vllm:num_preemptions_total"),
    )


def stratum_path(sample_path: Path, stratum: str) -> Path:
    """Where one stratum of a sample lies beside the whole."""
    return sample_path.with_name(f"{sample_path.stem}-{stratum}{sample_path.suffix}")


def cold_cache(served: Served) -> None:
    """Empty the prefix cache, so that both sides of a trial start alike (case LG5).

    Raises:
        Unreachable: the engine did not empty it.
    """
    try:
        answer = requests.post(f"{served.root_url}/reset_prefix_cache", timeout=30)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise Unreachable(f"the engine at {served.root_url} did not empty its prefix cache: {error}") from None
