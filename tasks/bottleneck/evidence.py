"""Ids of the evidence, their meaning, and how a reading becomes citable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.bottleneck.records import EvidenceItem, EvidencePack
from tasks.shared.records import Reading

RUNNING_MAX = "engine.running_max"
RUNNING_AVG = "engine.running_avg"
WAITING_AVG = "engine.waiting_avg"
WAITING_MAX = "engine.waiting_max"
SATURATED_SHARE = "engine.saturated_share"
QUEUE_TIME_P99 = "engine.queue_time_p99_ms"
TTFT_P99 = "engine.ttft_p99_ms"
KV_CACHE_MAX = "engine.kv_cache_max"
PREFIX_HIT_RATE = "engine.prefix_hit_rate"
PREEMPTIONS = "engine.preemptions"
PREFILL_TIME_SHARE = "engine.prefill_time_share"
THROUGHPUT = "engine.throughput"
CPU_SIDE_SHARE = "cpu.side_share"
TOKENISE_SHARE = "cpu.tokenise_share"
SCHEDULE_SHARE = "cpu.schedule_share"
DETOKENISE_SHARE = "cpu.detokenise_share"
MAX_NUM_SEQS = "config.max_num_seqs"
PREFIX_CACHING = "config.enable_prefix_caching"
MAX_MODEL_LEN = "config.max_model_len"
MAX_NUM_BATCHED_TOKENS = "config.max_num_batched_tokens"
PREFIX_REUSE = "traffic.prefix_reuse"
LONG_SHARE = "traffic.long_share"
LONG_TOKEN_SHARE = "traffic.long_token_share"  # noqa: S105 - tokens of text
PROMPT_TOKENS_AVG = "traffic.prompt_tokens_avg"

MEANINGS: Mapping[str, str] = {
    RUNNING_MAX: "most requests running at once on any replica",
    RUNNING_AVG: "requests running, mean over time and replicas",
    WAITING_AVG: "requests waiting, mean over time and replicas",
    WAITING_MAX: "most requests waiting on any replica",
    SATURATED_SHARE: "share of time with a request waiting",
    QUEUE_TIME_P99: "p99 of the time a request waits before it runs",
    TTFT_P99: "p99 of the time to the first token",
    KV_CACHE_MAX: "largest use of the KV cache, 1 is full",
    PREFIX_HIT_RATE: "share of prompt tokens found in the prefix cache",
    PREEMPTIONS: "running requests put back for want of KV cache",
    PREFILL_TIME_SHARE: "prefill time over prefill and decode time",
    THROUGHPUT: "generated tokens a second and accelerator",
    CPU_SIDE_SHARE: "share of profile samples that tokenise, schedule, detokenise or serve HTTP (unmeasured run)",
    TOKENISE_SHARE: "share of profile samples that tokenise",
    SCHEDULE_SHARE: "share of profile samples that schedule",
    DETOKENISE_SHARE: "share of profile samples that detokenise",
    MAX_NUM_SEQS: "limit of requests running at once, per engine",
    PREFIX_CACHING: "prefix caching: 1 on, 0 off",
    MAX_MODEL_LEN: "longest sequence served, prompt and output",
    MAX_NUM_BATCHED_TOKENS: "most tokens of one engine step",
    PREFIX_REUSE: "share of the sample's prompt tokens that repeat an earlier prefix",
    LONG_SHARE: "share of the sample's requests with long prompts",
    LONG_TOKEN_SHARE: "share of the sample's prompt tokens that lie in long prompts",
    PROMPT_TOKENS_AVG: "mean prompt length of the sample",
}

REQUIRED = (RUNNING_MAX, WAITING_AVG, MAX_NUM_SEQS)
"""Without these nothing can be said about where time goes, and stage 3 has nothing to stand on."""


def evidence_pack(
    campaign: str,
    readings: Mapping[str, Reading],
    *,
    running_series: Sequence[tuple[float, float]] = (),
    waiting_series: Sequence[tuple[float, float]] = (),
) -> EvidencePack:
    """The pack of these readings, in a fixed order.

    Raises:
        ValueError: an id that has no meaning here; nobody could cite it rightly.
    """
    if strange := sorted(set(readings) - set(MEANINGS)):
        raise ValueError(f"no such evidence id: {', '.join(strange)}; known are {', '.join(MEANINGS)}")
    items = tuple(EvidenceItem(id=i, meaning=MEANINGS[i], reading=readings[i]) for i in MEANINGS if i in readings)
    return EvidencePack(
        campaign=campaign,
        items=items,
        running_series=tuple(running_series),
        waiting_series=tuple(waiting_series),
    )


def config_reading(value: bool | int | float | str | None, *, source: str) -> Reading:
    """A setting as a reading: true is 1, false 0, a number itself; text and None are unknown."""
    if isinstance(value, bool | int | float):
        return Reading.of(float(value), "", source=source)
    return Reading.unknown(f"{source} is {'not set' if value is None else f'no number ({value})'}", source=source)
