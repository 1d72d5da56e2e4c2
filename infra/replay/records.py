"""What a replay is asked and what it answers."""

from __future__ import annotations

from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

Status = Literal["ok", "http_error", "stream_error", "cut", "timeout", "no_tokens", "not_sent"]
STATUSES: tuple[Status, ...] = ("ok", "http_error", "stream_error", "cut", "timeout", "no_tokens", "not_sent")

REQUEST_COLUMNS: dict[str, type[pl.DataType]] = {
    "request_id": pl.String,
    "planned_s": pl.Float64,
    "sent_s": pl.Float64,
    "first_token_s": pl.Float64,
    "last_token_s": pl.Float64,
    "end_s": pl.Float64,
    "status": pl.String,
    "http_status": pl.Int64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "tokens_estimated": pl.Boolean,
    "finish_reason": pl.String,
    "text_sha256": pl.String,
    "error": pl.String,
}


class ReplayLimits(BaseModel):
    """Beyond these a replay is no result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_dispatch_delay_p99_ms: float = Field(
        default=50.0, gt=0, description="p99 of sent minus planned; above it the client was the bottleneck"
    )
    max_error_rate: float = Field(
        default=0.5, ge=0, le=1, description="above it the survivors are no sample of the workload"
    )


class ReplayOptions(BaseModel):
    """How to replay; everything that changes what is measured is in here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["open", "closed"] = "open"
    concurrency: int | None = Field(
        default=None,
        ge=1,
        description="requests in flight; needed in closed loop, a client-side cap in open loop (None: none)",
    )
    endless: bool = Field(
        default=False,
        description="closed loop: goes on, pass after pass, until a file named STOP lies in the out folder. Each "
        "pass has other private text of equal length (infra/replay/variants.py); what conversations share stays",
    )
    variant: int = Field(
        default=0,
        ge=0,
        description="which variation of the private text is sent, the first pass's in an endless loop; 0: as recorded",
    )
    warmup: int = Field(default=0, ge=0, description="requests with other prompts before the clock starts")
    warmup_pause_s: float = Field(default=0.0, ge=0)
    time_scale: float = Field(
        default=1.0, gt=0, description="recorded gaps are multiplied by it: 0.5 is twice the recorded rate"
    )
    force_output_lengths: bool = Field(
        default=True,
        description="True: exactly the recorded number of tokens (speed). False: natural stop (correctness) "
        "and the texts are returned",
    )
    natural_max_tokens: int = Field(default=256, ge=1, description="most output tokens when lengths are not forced")
    timeout_s: float = Field(default=600.0, gt=0, description="from sending one request to its end")
    block_prompts: Literal["text", "token_ids"] = Field(
        default="text",
        description="how block ids become prompts: words through /chat/completions, or exact token ids "
        "through /completions",
    )
    cache_salt: str | None = Field(
        default=None,
        description="vLLM keeps prefix-cache entries of different salts apart: a fresh salt gives a cold "
        "cache on a warm server while reuse within the replay is kept",
    )
    limits: ReplayLimits = ReplayLimits()


class Percentiles(BaseModel):
    """Milliseconds, linear interpolation between ranks; all None when there is no sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class ReplaySummary(BaseModel):
    """One replay in numbers. Latencies are over ok requests only, in ms; failures are in `error_rate`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    requests: int
    ok: int
    failed: int
    error_rate: float = Field(description="failed / requests, 0 to 1")
    valid: bool
    invalid_reasons: tuple[str, ...]
    duration_s: float = Field(description="from the start of the replay to the end of its last request")
    output_tokens_per_s: float | None = Field(description="output tokens of ok requests over duration_s")
    prompt_tokens: int = Field(description="of ok requests")
    output_tokens: int = Field(description="of ok requests")
    tokens_estimated: int = Field(description="ok requests whose token counts are not the server's")
    dispatch_delay_ms: Percentiles = Field(description="sent minus planned, of every request that was sent")
    ttft_ms: Percentiles = Field(description="first token from planned (open loop) or sent (closed loop)")
    tpot_ms: Percentiles = Field(description="(last - first token) / (output tokens - 1), per request")
    itl_ms: Percentiles = Field(description="time per token within a chunk gap, at the request's own tokens/chunk")
    e2e_ms: Percentiles = Field(description="end from planned (open loop) or sent (closed loop)")
    chunk_gap_ms: Percentiles = Field(description="between chunks of the stream; a chunk may hold several tokens")
    failures: dict[str, int] = Field(description="status other than ok to number of requests")
    without_text: int = Field(
        default=0, description="ok requests answered without text: the server counted tokens and showed none (LG7)"
    )
    cached_tokens: int | None = Field(
        description="prompt tokens served from the prefix cache, where the server says so; None where not"
    )
    max_in_flight: int
    mode: Literal["open", "closed"]
    concurrency: int | None
    time_scale: float
    warmup_sent: int
    warmup_failed: int
    started_epoch_s: float = Field(description="wall clock at the start, to find the same window in Prometheus")
    ended_epoch_s: float
    sample_hash: str
    replay_hash: str = Field(description="sha256 over the sources of the replay (spec V2)")


class ReplayResult:
    """The per-request table (columns of REQUEST_COLUMNS), the summary, and the texts of a correctness run."""

    def __init__(self, requests: pl.DataFrame, summary: ReplaySummary, texts: dict[str, str] | None = None) -> None:
        self.requests = requests
        self.summary = summary
        self.texts = texts or {}
