"""The playbook's model and parser. Pure: the text is an argument."""

from __future__ import annotations

from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from infra.errors import BadInput
from tasks.hypothesis.records import Scalar
from tasks.shared.records import Record

Bottleneck = Literal["queueing", "prefix_recompute", "prefill", "kv_cache", "cpu_side", "decode_batch", "long_context"]


class Move(Record):
    """One switch worth trying for one bottleneck."""

    bottleneck: Bottleneck
    knob: str = Field(min_length=1)
    move: Literal["set", "multiply", "couple"]
    to: Scalar | None = Field(default=None, description="the value of `set`")
    by: float | None = Field(default=None, gt=0, description="the factor of `multiply` and `couple`")
    only_if: Scalar | None = Field(default=None, description="present value that the move presupposes")
    metric: str = Field(min_length=1)
    expected_pct: float | Literal["from_bottleneck"] | None
    risk: float = Field(ge=0, le=1)
    because: str = Field(min_length=10)
    validate_by: str = Field(min_length=10)
    holds_if: str = Field(min_length=10)
    worst_case: str = Field(min_length=10)
    may_get_worse: tuple[str, ...] = Field(min_length=1)
    may_change_outputs: bool = False

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Move:
        needed, spare = (self.to, self.by) if self.move == "set" else (self.by, self.to)
        if needed is None or spare is not None:
            takes = "to" if self.move == "set" else "by"
            raise ValueError(f"a move of {self.knob} by `{self.move}` takes `{takes}` and nothing else")
        if self.move == "multiply" and self.by == 1:
            raise ValueError(f"multiplying {self.knob} by 1 moves nothing")
        return self


class Playbook(Record):
    """All moves, in the order in which an engineer would try them."""

    version: Literal[1]
    moves: tuple[Move, ...] = Field(min_length=1)

    def moves_for(self, bottleneck: str) -> tuple[Move, ...]:
        """The moves of one bottleneck, in order."""
        return tuple(move for move in self.moves if move.bottleneck == bottleneck)


def parse_playbook(text: str) -> Playbook:
    """The playbook of a YAML text.

    Raises:
        BadInput: no YAML, an unknown key, a missing one, a value out of range; names each place.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise BadInput(f"the playbook is no YAML: {' '.join(str(fault).split())}") from None
    try:
        return Playbook.model_validate(raw)
    except ValidationError as fault:
        places = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in fault.errors(include_url=False))
        raise BadInput(f"the playbook is not valid: {places}", remedy="Correct these entries") from None
