"""What the switch says of its arms and of a rollback."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ClusterCounters(BaseModel):
    """Envoy's counters of one arm since Envoy started; they fall back to 0 when it restarts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rq_total: int = Field(description="requests sent to the arm")
    rq_2xx: int
    rq_4xx: int
    rq_5xx: int = Field(description="5xx answers, Envoy's own 503s for this arm included")
    resets: int = Field(description="streams broken off, by the arm or by Envoy towards it")
    connect_failures: int = Field(description="connections that were refused or timed out")
    none_healthy: int = Field(description="requests for which the arm had no address")
    active: int = Field(description="requests under way now")


class RollbackReport(BaseModel):
    """What a rollback did and how long it took; durations count from the decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision_monotonic_s: float = Field(description="time.monotonic() when it was called")
    in_force_ms: float = Field(description="until Envoy itself said weight 0")
    last_canary_request_ms: float | None = Field(
        description="until the last request the canary was seen to get; None when it got none"
    )
    canary_requests_after: int = Field(description="requests the canary got after weight 0 was read back")
    quiet_s: float = Field(description="for how long the canary's counter was then watched and stood still")

    def last_request_ms(self, decided_s: float) -> float:
        """From a decision made at `decided_s` (`time.monotonic()`) to the canary's last new request.

        Where none was seen after weight 0, the last one came before that: the moment when it was in force is the bound.
        """
        seen = self.last_canary_request_ms
        return (self.decision_monotonic_s - decided_s) * 1000 + (self.in_force_ms if seen is None else seen)
