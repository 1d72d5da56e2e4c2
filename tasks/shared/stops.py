"""Reasons to stop that a person reads."""

from __future__ import annotations

from infra.errors import RatchetError


class GateFailed(RatchetError):
    """Data did not pass a quality gate; the stage behind it must not run."""


class PreconditionFailed(RatchetError):
    """One of the six questions before a campaign was answered with no (spec P1)."""


class CriteriaChanged(RatchetError):
    """The committed criteria changed during a campaign, which ends it (spec C3)."""
