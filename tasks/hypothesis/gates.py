"""Data-quality gate before stage 4: the hypotheses that cost accelerator time. Pure data."""

from __future__ import annotations

from infra.quality.suite import GateSuite, filled, not_blank, one_of, unique
from tasks.hypothesis.records import Hypotheses


def hypothesis_rows(found: Hypotheses) -> list[dict[str, object]]:
    """One row a hypothesis."""
    return [
        {
            "id": h.id,
            "knob": h.knob,
            "moves": h.value_from != h.value_to or type(h.value_from) is not type(h.value_to),
            "because": h.because,
            "metric": h.metric,
            "validate_by": h.validate_by,
            "holds_if": h.holds_if,
            "worst_case": h.worst_case,
            "rollback": h.rollback,
            "source": h.source,
        }
        for h in found.hypotheses
    ]


HYPOTHESES = GateSuite(
    name="hypotheses",
    min_rows=1,
    expectations=(
        filled("id"),
        unique("id"),
        # One switch each, and each switch once: two moves of one knob would be two values of one question.
        not_blank("knob"),
        unique("knob"),
        one_of("moves", (True,)),
        not_blank("because"),
        not_blank("metric"),
        not_blank("validate_by"),
        not_blank("holds_if"),
        not_blank("worst_case"),
        not_blank("rollback"),
        one_of("source", ("playbook", "optimiser", "agent")),
    ),
)
