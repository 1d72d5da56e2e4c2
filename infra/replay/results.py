"""From observations to the per-request table and the summary. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from infra.replay.client import Observation
from infra.replay.records import (
    REQUEST_COLUMNS,
    Percentiles,
    ReplayLimits,
    ReplayOptions,
    ReplaySummary,
)


def requests_frame(observations: Sequence[Observation]) -> pl.DataFrame:
    """One row a request, exactly the columns of REQUEST_COLUMNS, seconds from the start of the replay."""
    rows = [
        (
            o.request_id,
            o.planned_s,
            o.sent_s,
            o.chunk_times_s[0] if o.chunk_times_s else None,
            o.chunk_times_s[-1] if o.chunk_times_s else None,
            o.end_s,
            o.status,
            o.http_status,
            o.prompt_tokens,
            o.output_tokens,
            o.tokens_estimated,
            o.finish_reason,
            o.text_sha256,
            o.error,
        )
        for o in observations
    ]
    return pl.DataFrame(rows, schema=REQUEST_COLUMNS, orient="row")


def latencies(requests: pl.DataFrame, mode: str) -> pl.DataFrame:
    """Per ok request: request_id, planned_s, dispatch_delay_ms, ttft_ms, tpot_ms (from 2 tokens on), e2e_ms.

    Open loop counts from the planned time, so that a client or server that falls behind cannot hide the wait
    (coordinated omission, case LG1); closed loop has no plan and counts from sending.
    """
    start = pl.col("planned_s" if mode == "open" else "sent_s")
    return requests.filter(pl.col("status") == "ok").select(
        "request_id",
        "planned_s",
        ((pl.col("sent_s") - pl.col("planned_s")) * 1000).alias("dispatch_delay_ms"),
        ((pl.col("first_token_s") - start) * 1000).alias("ttft_ms"),
        pl.when(pl.col("output_tokens") > 1)
        .then((pl.col("last_token_s") - pl.col("first_token_s")) * 1000 / (pl.col("output_tokens") - 1))
        .alias("tpot_ms"),
        ((pl.col("end_s") - start) * 1000).alias("e2e_ms"),
    )


def percentiles(values: pl.Series) -> Percentiles:
    """p50, p90, p99 (linear interpolation) and maximum; all None when there is no value."""
    known = values.drop_nulls()
    if known.is_empty():
        return Percentiles()
    p50, p90, p99 = (known.quantile(q, interpolation="linear") for q in (0.5, 0.9, 0.99))
    largest = known.max()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=float(largest) if isinstance(largest, float | int) else None)


def summarize(
    observations: Sequence[Observation],
    requests: pl.DataFrame,
    options: ReplayOptions,
    *,
    epoch_s: tuple[float, float],
    max_in_flight: int,
    warmup: tuple[int, int],
    hashes: tuple[str, str],
) -> ReplaySummary:
    """The summary. `epoch_s` is (start, end), `warmup` (sent, failed), `hashes` (sample, replay)."""
    served = [o for o in observations if o.status == "ok"]
    exact = [o for o in served if not o.tokens_estimated]
    estimated = len(served) - len(exact)
    timed = latencies(requests, options.mode)
    tpot = timed
    if exact and estimated:  # exact and estimated counts are never mixed in one distribution
        known = {o.request_id for o in exact}
        tpot = timed.filter(pl.col("request_id").is_in(known))
    delay = ((requests["sent_s"] - requests["planned_s"]) * 1000).alias("dispatch_delay_ms")
    dispatch = percentiles(delay)
    duration_s = max((o.end_s or 0.0 for o in observations), default=0.0)
    output_tokens = sum(o.output_tokens or 0 for o in served)
    failures = Counter(o.status for o in observations if o.status != "ok")
    reasons = invalid_reasons(len(observations), len(served), estimated, dispatch.p99, options.limits)
    cached = [o.cached_tokens for o in served if o.cached_tokens is not None]
    gaps, per_token = _gaps(exact or served)
    return ReplaySummary(
        requests=len(observations),
        ok=len(served),
        failed=len(observations) - len(served),
        error_rate=(len(observations) - len(served)) / len(observations) if observations else 0.0,
        valid=not reasons,
        invalid_reasons=reasons,
        duration_s=duration_s,
        output_tokens_per_s=output_tokens / duration_s if served and duration_s > 0 else None,
        prompt_tokens=sum(o.prompt_tokens or 0 for o in served),
        output_tokens=output_tokens,
        tokens_estimated=estimated,
        dispatch_delay_ms=dispatch,
        ttft_ms=percentiles(timed["ttft_ms"]),
        tpot_ms=percentiles(tpot["tpot_ms"]),
        itl_ms=percentiles(pl.Series(per_token, dtype=pl.Float64)),
        e2e_ms=percentiles(timed["e2e_ms"]),
        chunk_gap_ms=percentiles(pl.Series(gaps, dtype=pl.Float64)),
        failures=dict(sorted(failures.items())),
        without_text=sum(not o.chunk_times_s for o in served),
        cached_tokens=sum(cached) if cached else None,
        max_in_flight=max_in_flight,
        mode=options.mode,
        concurrency=options.concurrency,
        time_scale=options.time_scale,
        warmup_sent=warmup[0],
        warmup_failed=warmup[1],
        started_epoch_s=epoch_s[0],
        ended_epoch_s=epoch_s[1],
        sample_hash=hashes[0],
        replay_hash=hashes[1],
    )


def invalid_reasons(
    requests: int, ok: int, estimated: int, dispatch_p99_ms: float | None, limits: ReplayLimits
) -> tuple[str, ...]:
    """Why a replay is no result; empty when it is one. Each sentence quotes both numbers."""
    reasons = []
    if requests == 0:
        reasons.append("no requests: the sample is empty")
    elif ok == 0:
        reasons.append(f"no request succeeded: 0 of {requests}")
    elif (requests - ok) / requests > limits.max_error_rate:
        reasons.append(
            f"too many errors: error rate {(requests - ok) / requests:.3f} is above {limits.max_error_rate:.3f}"
        )
    if dispatch_p99_ms is not None and dispatch_p99_ms > limits.max_dispatch_delay_p99_ms:
        reasons.append(
            f"client-bound: p99 of the dispatch delay {dispatch_p99_ms:.1f} ms is above "
            f"{limits.max_dispatch_delay_p99_ms:.1f} ms"
        )
    if 0 < estimated < ok:
        reasons.append(f"mixed token counts: {estimated} of {ok} are estimates, the others the server's")
    return tuple(reasons)


def _gaps(served: Sequence[Observation]) -> tuple[list[float], list[float]]:
    """Gaps between chunks in ms, and the same per token at each request's own number of tokens a chunk."""
    gaps: list[float] = []
    per_token: list[float] = []
    for o in served:
        times = o.chunk_times_s
        if len(times) < 2:
            continue
        share = (len(times) - 1) / max((o.output_tokens or len(times)) - 1, 1)
        for earlier, later in pairwise(times):
            gaps.append((later - earlier) * 1000)
            per_token.append((later - earlier) * 1000 * share)
    return gaps, per_token
