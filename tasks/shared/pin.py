"""What a campaign is pinned to before it may start."""

from __future__ import annotations

from pydantic import Field

from tasks.shared.records import Criteria, Judgement, Record


class CriteriaPin(Record):
    """The criteria of one campaign: committed, parsed and hashed at its start (spec C3)."""

    path: str
    commit: str
    blob: str
    text_hash: str
    criteria: Criteria
    criteria_hash: str
    pinned: bool = Field(description="read from a commit; anything else makes every verdict `unpinned`")


class Preconditions(Record):
    """The six questions with their measured answers (spec P1)."""

    judgement: Judgement
    answers: dict[str, str]
