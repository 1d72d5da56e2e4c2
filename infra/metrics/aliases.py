"""Names of the engine's metrics across vLLM versions.

A metric that was renamed reads as missing under its old name. So nothing here asks for a fixed name: a
canonical name is resolved, replica by replica, against what that replica really exports, newest name first.
A replica that exports an old and a new name is counted once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infra.errors import RatchetError

Kind = Literal["counter", "gauge", "histogram"]


class MetricUnavailable(RatchetError):
    """None of the names of a metric is exported by the target."""


class Family(BaseModel):
    """One metric, whatever it was called.

    Histograms are named without `_bucket`, `_count` and `_sum`; counters with the `_total` that the
    exposition adds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    canonical: str
    kind: Kind
    unit: str
    names: tuple[str, ...]
    """Newest first."""


def _family(canonical: str, kind: Kind, unit: str, *names: str) -> Family:
    return Family(canonical=canonical, kind=kind, unit=unit, names=names)


_FAMILIES = (
    _family("running", "gauge", "requests", "vllm:num_requests_running"),
    _family("waiting", "gauge", "requests", "vllm:num_requests_waiting"),
    _family("kv_cache_usage", "gauge", "ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    _family("preemptions", "counter", "count", "vllm:num_preemptions_total"),
    _family("prompt_tokens", "counter", "tokens", "vllm:prompt_tokens_total"),
    _family("prompt_tokens_cached", "counter", "tokens", "vllm:prompt_tokens_cached_total"),
    _family("generation_tokens", "counter", "tokens", "vllm:generation_tokens_total"),
    _family("request_success", "counter", "requests", "vllm:request_success_total"),
    _family("admission_rejections", "counter", "requests", "vllm:admission_rejections_total"),
    _family(
        "prefix_cache_queries",
        "counter",
        "tokens",
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    _family(
        "prefix_cache_hits",
        "counter",
        "tokens",
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    _family("ttft", "histogram", "s", "vllm:time_to_first_token_seconds"),
    # The old "time per output token" histogram observed every gap between tokens: it is today's ITL. Today's
    # TPOT is one mean per request, which the old versions did not export, so it has no older name.
    _family("itl", "histogram", "s", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    _family("tpot", "histogram", "s", "vllm:request_time_per_output_token_seconds"),
    _family("e2e_latency", "histogram", "s", "vllm:e2e_request_latency_seconds"),
    _family("queue_time", "histogram", "s", "vllm:request_queue_time_seconds"),
    _family("inference_time", "histogram", "s", "vllm:request_inference_time_seconds"),
    _family("prefill_time", "histogram", "s", "vllm:request_prefill_time_seconds"),
    _family("decode_time", "histogram", "s", "vllm:request_decode_time_seconds"),
    _family("prompt_length", "histogram", "tokens", "vllm:request_prompt_tokens"),
    _family("output_length", "histogram", "tokens", "vllm:request_generation_tokens"),
)
FAMILIES: Mapping[str, Family] = {family.canonical: family for family in _FAMILIES}


def family(canonical: str) -> Family:
    """The family of a canonical name.

    Raises:
        MetricUnavailable: the table has no such name.
    """
    try:
        return FAMILIES[canonical]
    except KeyError:
        raise MetricUnavailable(
            f"no metric is called {canonical}", remedy=f"Known are {', '.join(sorted(FAMILIES))}"
        ) from None


def exported_as(entry: Family, name: str) -> str:
    """The series name that proves that `name` is exported (a histogram shows itself by its `_count`)."""
    return f"{name}_count" if entry.kind == "histogram" else name


def resolve(canonical: str, exported: Collection[str]) -> str:
    """The name under which one target exports a metric; the newest when it exports several.

    Args:
        canonical: a key of `FAMILIES`.
        exported: series names of the target's exposition.

    Raises:
        MetricUnavailable: neither name is exported; a missing metric is never a zero.
    """
    entry = family(canonical)
    for name in entry.names:
        if exported_as(entry, name) in exported:
            return name
    raise MetricUnavailable(
        f"metric {canonical} is not exported by the target; looked for {', '.join(entry.names)}",
        remedy="Add the name that this engine version uses to the alias table",
    )


def series_names(exposition: Iterable[str]) -> frozenset[str]:
    """The series names in the lines of a /metrics text."""
    return frozenset(
        line.split("{", 1)[0].split(" ", 1)[0] for line in exposition if line.strip() and not line.startswith("#")
    )
