"""What stage 2 hands on: ranked candidates, each with the readings it rests on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.shared.records import Reading, Record


class EvidenceItem(Record):
    """One piece of evidence, cited by its id."""

    id: str
    meaning: str
    reading: Reading


class EvidencePack(Record):
    """Everything that stage 2 may reason from (spec L1)."""

    campaign: str
    items: tuple[EvidenceItem, ...]
    running_series: tuple[tuple[float, float], ...] = Field(
        default=(), description="(second of the window, requests running): the utilisation curve"
    )
    waiting_series: tuple[tuple[float, float], ...] = ()

    def reading(self, item_id: str) -> Reading:
        """The reading cited as `item_id`, or unknown when the pack holds none."""
        for item in self.items:
            if item.id == item_id:
                return item.reading
        return Reading.unknown(f"no evidence with the id {item_id}")


class BottleneckCandidate(Record):
    """One suspected bottleneck (spec L2)."""

    name: Literal["queueing", "prefix_recompute", "prefill", "kv_cache", "cpu_side", "decode_batch", "long_context"]
    cites: tuple[str, ...] = Field(min_length=1, description="ids of the evidence it rests on")
    claim: str = Field(description="what is said to hold things up; its numbers match the evidence")
    expected_gain_pct: float | None = Field(description="estimated effect on throughput; None for `uncertain`")
    risk: float = Field(ge=0, le=1)
    confirm: str = Field(description="the check that would confirm it")
    falsify: str = Field(description="what the data would look like if it were wrong")
    by: Literal["rules", "analyst"] = "rules"


class BottleneckReport(Record):
    """Stage 2's result: five candidates at most, best first; none is an allowed answer."""

    campaign: str
    evidence: EvidencePack
    candidates: tuple[BottleneckCandidate, ...] = Field(max_length=5)
    refused: tuple[str, ...] = Field(default=(), description="candidates that were refused, with the reason")
