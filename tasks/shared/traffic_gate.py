"""The gate that stands before everything that is built on a traffic sample. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.quality.suite import GateSuite, between, filled, unique

STRATA = ("short", "medium", "long")


def stratum(prompt_tokens: int, *, short_below: int, medium_below: int) -> str:
    """Length class of a prompt (spec V1)."""
    if prompt_tokens < short_below:
        return "short"
    return "medium" if prompt_tokens < medium_below else "long"


def sample_rows(
    requests: Iterable[Mapping[str, object]], *, short_below: int, medium_below: int
) -> list[dict[str, object]]:
    """One row a request of a sample file, with its count of contents (messages, block ids) and its stratum.

    What a request lacks stays None, so that the gate finds it.
    """
    rows = []
    for request in requests:
        prompt = request.get("prompt_tokens")
        known = isinstance(prompt, int | float) and prompt == prompt  # noqa: PLR0124 - NaN is not itself
        rows.append(
            {
                "request_id": request.get("request_id"),
                "arrival_s": request.get("arrival_s"),
                "prompt_tokens": prompt,
                "output_tokens": request.get("output_tokens"),
                # A request without either cannot be replayed.
                "content_parts": int(_filled(request.get("messages"))) + int(_filled(request.get("block_ids"))),
                "stratum": stratum(int(prompt), short_below=short_below, medium_below=medium_below)
                if known and isinstance(prompt, int | float)
                else "unknown",
            }
        )
    return rows


def _filled(value: object) -> bool:
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def traffic_suite(*, min_requests: int, min_per_stratum: Mapping[str, int] | None = None) -> GateSuite:
    """The suite over `sample_rows`.

    Args:
        min_requests: fewest requests of the sample.
        min_per_stratum: fewest requests of each length class that must be there, by class.
    """
    return GateSuite(
        name="traffic sample",
        min_rows=min_requests,
        bucket_column="stratum",
        min_rows_per_bucket=dict(min_per_stratum or {}),
        expectations=(
            filled("request_id"),
            unique("request_id"),
            filled("arrival_s"),
            between("arrival_s", 0, None),
            filled("prompt_tokens"),
            between("prompt_tokens", 1, None),
            filled("output_tokens"),
            between("output_tokens", 1, None),
            between("content_parts", 1, None),
        ),
    )
