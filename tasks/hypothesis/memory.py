"""The memory of rejected ideas, out of the ledger (spec H3). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.hypothesis.records import IdeaIdentity, RejectedIdea
from tasks.shared.ledger import adoptions, rejections
from tasks.shared.records import LedgerEntry


def remembered(entries: Iterable[LedgerEntry]) -> tuple[RejectedIdea, ...]:
    """The measured single-knob rejections as ideas, oldest first.

    A combination is no idea of one knob and teaches nothing about its members, so it is left out. Each idea carries
    the adoption that was in force when it was measured: a later one allows a retest.
    """
    entries = list(entries)
    return tuple(
        RejectedIdea(
            identity=IdeaIdentity(
                knob=entry.knob,
                value=entry.value,
                engine_build=entry.engine_build,
                model=entry.target.model,
                workload=entry.workload,
                interacts_with=adoption_in_force(entries, entry.at_s),
            ),
            outcome_class=entry.outcome_class,
            reason=entry.reason,
            throughput_change_pct=entry.throughput_change_pct,
            campaign=entry.campaign,
            trial_key=entry.record_key,
        )
        for entry in rejections(entries)
        if entry.value is not None and len(entry.changes) <= 1
    )


def adoption_in_force(entries: Iterable[LedgerEntry], at_s: float) -> str:
    """The last adoption until then, as `knob=value, ... (campaign)`; empty where nothing was adopted yet."""
    before = [entry for entry in adoptions(entries) if entry.at_s <= at_s]
    if not before:
        return ""
    changes = ", ".join(f"{knob}={value}" for knob, value in sorted(before[-1].changes.items()))
    return f"{changes} ({before[-1].campaign})"
