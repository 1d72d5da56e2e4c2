"""Two replays of one sample side by side: did both serve the same work (case OB2)? Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from infra.errors import BadInput
from infra.replay.results import latencies


class StratumCoverage(BaseModel):
    """Served share of one length band on both sides, 0 to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stratum: str
    requests: int
    baseline_served: float
    candidate_served: float


class Coverage(BaseModel):
    """Whether the candidate did the work that the baseline did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strata: tuple[StratumCoverage, ...]
    paired: int = Field(description="requests that both served")
    only_baseline: tuple[str, ...] = Field(description="ids that only the baseline served")
    only_candidate: tuple[str, ...] = Field(description="ids that only the candidate served")
    output_token_ratio: float | None = Field(
        description="candidate's output tokens over the baseline's, of pairs; 1 when lengths are forced"
    )
    same_requests: bool = Field(description="both tables hold the same ids; without it nothing is comparable")

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Strata in which the candidate served a smaller share than the baseline."""
        return tuple(s.stratum for s in self.strata if s.candidate_served < s.baseline_served)


def compare_coverage(
    baseline: pl.DataFrame, candidate: pl.DataFrame, stratum_by_request: Mapping[str, str]
) -> Coverage:
    """Pair two request tables by id. BadInput when a table repeats an id."""
    sides = []
    for name, table in (("baseline", baseline), ("candidate", candidate)):
        if table["request_id"].n_unique() != len(table):
            raise BadInput(f"the {name}'s request table repeats ids, so requests cannot be paired")
        rows = table.select("request_id", "status", "output_tokens").iter_rows()
        sides.append({key: (status == "ok", tokens or 0) for key, status, tokens in rows})
    left, right = sides
    strata: dict[str, list[str]] = {}
    for key in sorted(set(left) | set(right)):
        strata.setdefault(stratum_by_request.get(key, ""), []).append(key)
    served = [{key for key, (ok, _) in side.items() if ok} for side in sides]
    paired = served[0] & served[1]
    base_tokens = sum(left[key][1] for key in paired)
    return Coverage(
        strata=tuple(
            StratumCoverage(
                stratum=stratum,
                requests=len(keys),
                baseline_served=sum(key in served[0] for key in keys) / len(keys),
                candidate_served=sum(key in served[1] for key in keys) / len(keys),
            )
            for stratum, keys in sorted(strata.items())
        ),
        paired=len(paired),
        only_baseline=tuple(sorted(served[0] - served[1])),
        only_candidate=tuple(sorted(served[1] - served[0])),
        output_token_ratio=sum(right[key][1] for key in paired) / base_tokens if base_tokens else None,
        same_requests=set(left) == set(right),
    )


def goodput_share(
    requests: pl.DataFrame,
    mode: str,
    *,
    ttft_limit_ms: float | None = None,
    tpot_limit_ms: float | None = None,
    e2e_limit_ms: float | None = None,
) -> float | None:
    """Share of all requests, failed ones included, served within the limits; None for an empty table."""
    if requests.is_empty():
        return None
    good = latencies(requests, mode)
    for column, limit in (("ttft_ms", ttft_limit_ms), ("tpot_ms", tpot_limit_ms), ("e2e_ms", e2e_limit_ms)):
        if limit is not None:
            good = good.filter(pl.col(column).fill_null(0.0) <= limit)
    return len(good) / len(requests)
