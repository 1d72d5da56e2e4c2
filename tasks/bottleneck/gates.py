"""Data-quality gate before stage 3: the evidence that candidates rest on. Pure data."""

from __future__ import annotations

from collections.abc import Sequence

from infra.quality.suite import GateSuite, contains_all, filled, not_blank, one_of, unique
from tasks.bottleneck.records import EvidencePack


def evidence_rows(pack: EvidencePack, required: Sequence[str]) -> list[dict[str, object]]:
    """One row a piece of evidence; `usable` is what a required one must be: known."""
    return [
        {
            "id": item.id,
            "meaning": item.meaning,
            "status": item.reading.status,
            "value": item.reading.value,
            "explained": item.reading.value is not None or bool(item.reading.cause),
            "usable": item.reading.value is not None or item.id not in required,
        }
        for item in pack.items
    ]


def evidence_suite(required: Sequence[str]) -> GateSuite:
    """Required evidence is there and known; the rest says why where it is not."""
    return GateSuite(
        name="evidence",
        min_rows=max(1, len(set(required))),
        expectations=(
            filled("id"),
            unique("id"),
            contains_all("id", tuple(required)),
            not_blank("meaning"),
            one_of("status", ("value", "zero", "unknown")),
            one_of("explained", (True,)),
            one_of("usable", (True,)),
        ),
    )
