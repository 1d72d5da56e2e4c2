"""The memory of rejected ideas, out of the ledger (spec H3). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.hypothesis.records import IdeaIdentity, RejectedIdea
from tasks.shared.ledger import rejections
from tasks.shared.records import LedgerEntry


def remembered(entries: Iterable[LedgerEntry]) -> tuple[RejectedIdea, ...]:
    """The measured single-knob rejections as ideas, oldest first.

    A combination is no idea of one knob and teaches nothing about its members, so it is left out.
    """
    return tuple(
        RejectedIdea(
            identity=IdeaIdentity(
                knob=entry.knob,
                value=entry.value,
                engine_build=entry.engine_build,
                model=entry.target.model,
                workload=entry.workload,
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
