"""What stage 3 hands on: single-switch hypotheses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.shared.records import Outcome, Record

Scalar = bool | int | float | str


class IdeaIdentity(Record):
    """What makes two proposals the same idea (spec H3)."""

    knob: str
    value: Scalar
    engine_build: str
    model: str
    workload: str
    interacts_with: str = Field(default="", description="the adoption in force when it was measured, or none")


class Hypothesis(Record):
    """`if X goes from A to B, metric Y moves by Z because M` (spec H1): one switch (H2)."""

    id: str
    knob: str
    knob_class: Literal["numeric", "choice", "structural"]
    value_from: Scalar | None
    value_to: Scalar
    metric: str
    expected_change_pct: float | None = Field(description="None for `uncertain`")
    because: str
    bottleneck: str
    validate_by: str
    holds_if: str
    worst_case: str
    may_get_worse: tuple[str, ...]
    may_change_outputs: bool
    rollback: str
    source: Literal["playbook", "optimiser", "agent"]
    interacts_with: str = Field(default="", description="the adoption that justifies this retest of a rejected idea")

    def sentence(self) -> str:
        """The hypothesis in one sentence."""
        size = "by an uncertain amount" if self.expected_change_pct is None else f"by {self.expected_change_pct:+.0f} %"
        return (
            f"if {self.knob} goes from {self.value_from} to {self.value_to}, "
            f"{self.metric} moves {size} because {self.because}"
            + (f" (tried again since {self.interacts_with} was adopted)" if self.interacts_with else "")
        )


class RefusedIdea(Record):
    """A proposal that was not let through, and the rule and data that say why."""

    knob: str
    value: Scalar
    source: str
    rule: str
    text: str


class RejectedIdea(Record):
    """A remembered rejection with its data (spec H3)."""

    identity: IdeaIdentity
    outcome_class: str
    reason: str
    throughput_change_pct: float | None
    campaign: str
    trial_key: str


class Hypotheses(Record):
    """Stage 3's result."""

    campaign: str
    hypotheses: tuple[Hypothesis, ...]
    refused: tuple[RefusedIdea, ...] = ()
    outcome: Outcome = Outcome.PASS
