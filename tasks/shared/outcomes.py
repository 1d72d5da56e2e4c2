"""How outcomes add up. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.shared.records import Judgement, Outcome, Reason

WORST_FIRST = (Outcome.FAIL, Outcome.ERROR, Outcome.NO_DATA, Outcome.INCONCLUSIVE, Outcome.PASS)


def combine(outcomes: Iterable[Outcome]) -> Outcome:
    """Any FAIL is FAIL, else ERROR, else NO_DATA, else INCONCLUSIVE, else PASS; nothing at all is NO_DATA."""
    present = set(outcomes)
    return next((outcome for outcome in WORST_FIRST if outcome in present), Outcome.NO_DATA)


def judgement(reasons: Iterable[Reason], *, silent: Iterable[Reason] = ()) -> Judgement:
    """All reasons and what they amount to.

    Args:
        reasons: those that decide.
        silent: those that are shown and decide nothing, e.g. an optional guard without data.
    """
    deciding = tuple(reasons)
    return Judgement(outcome=combine(r.outcome for r in deciding), reasons=(*deciding, *silent))


def worst_first(reasons: Iterable[Reason]) -> list[Reason]:
    """What decided stands first, for whoever shows only the beginning."""
    return sorted(reasons, key=lambda r: WORST_FIRST.index(r.outcome))


def with_reasons(said: Judgement, further: Iterable[Reason]) -> Judgement:
    """The judgement with further deciding reasons. What was silent in it stays silent."""
    added = tuple(further)
    if not added:
        return said
    return Judgement(outcome=combine([said.outcome, *(r.outcome for r in added)]), reasons=(*said.reasons, *added))
