"""What the search knows about a knob, and one spelling for each knob and value (spec H3, H4). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from infra.errors import BadInput
from tasks.hypothesis.records import Scalar
from tasks.shared.records import KnobLimit, Record

NEAR_SHARE = 0.02
"""Two values of a numeric knob closer than this share are one idea: no run could tell them apart."""
_TRUE = frozenset({"true", "on", "yes", "1"})
_FALSE = frozenset({"false", "off", "no", "0"})


class KnobFacts(Record):
    """One knob of the engine, as the search sees it."""

    name: str
    knob_class: Literal["numeric", "choice", "structural"]
    kind: Literal["bool", "int", "float", "text"]
    minimum: float | None = Field(default=None, description="hard rail, in the knob's own unit")
    maximum: float | None = None
    step: float | None = Field(default=None, gt=0, description="values are multiples of it")
    choices: tuple[Scalar, ...] = ()
    default: Scalar | None = Field(default=None, description="the engine's own, when the argument is absent")
    may_change_outputs: bool = False


class CatalogueView(Record):
    """The knobs that the search may move, by canonical name, and other names that mean them."""

    knobs: dict[str, KnobFacts]
    synonyms: dict[str, str] = Field(default_factory=dict)

    def canonical(self, name: str) -> str | None:
        """The knob that a spelling means (`--max-num-seqs`, `Max_Num_Seqs`); None when there is none."""
        plain = name.strip().lower().lstrip("-").replace("-", "_").replace(" ", "_")
        plain = self.synonyms.get(plain, plain)
        return plain if plain in self.knobs else None


def normalised(facts: KnobFacts, value: Scalar) -> Scalar:
    """One spelling of a value: "256.0", 256.0 and 256 are 256, "on" is true.

    Raises:
        BadInput: no value of this knob's type or choices, NaN and infinity among them.
    """
    wrong = BadInput(f"{value!r} is no value of {facts.name}, which takes {_takes(facts)}")
    result: Scalar
    if facts.kind == "bool":
        text = str(value).strip().lower()
        if text not in _TRUE | _FALSE:
            raise wrong
        result = text in _TRUE
    elif facts.kind in ("int", "float"):
        if isinstance(value, bool):
            raise wrong
        try:
            number = float(str(value).strip().replace("_", ""))
        except ValueError:
            raise wrong from None
        if not math.isfinite(number) or (facts.kind == "int" and number != int(number)):
            raise wrong
        result = int(number) if facts.kind == "int" else number
    else:
        text = str(value).strip()
        result = next((c for c in facts.choices if str(c).lower() == text.lower()), text)
    if facts.choices and result not in facts.choices:
        raise wrong
    return result


def _takes(facts: KnobFacts) -> str:
    if facts.choices:
        return " or ".join(str(choice) for choice in facts.choices)
    return {"bool": "true or false", "int": "a whole number", "float": "a number", "text": "a text"}[facts.kind]


def same_idea(facts: KnobFacts, one: Scalar, other: Scalar) -> bool:
    """Whether two normalised values are one idea: equal, or nearer than the knob's step or `NEAR_SHARE`."""
    if facts.knob_class == "choice" or isinstance(one, str) or isinstance(other, str):
        return one == other
    step = max(facts.step or 0.0, NEAR_SHARE * max(abs(one), abs(other)))
    return one == other or abs(one - other) < step


class ValueRange(Record):
    """Where a numeric knob may go this round, and which rule set each end."""

    low: float
    high: float
    low_rule: str
    high_rule: str


def allowed_range(
    facts: KnobFacts, first_value: float, limits: Mapping[str, KnobLimit], default_max_drift_factor: float
) -> ValueRange:
    """The range of a numeric knob: drift, the catalogue's rails and the criteria's, whichever is narrower.

    Drift (spec H5) is a factor on the value in the campaign's first baseline, both ways: value / factor to
    value x factor. The factor is the criteria's for this knob, else the default (1.3). A first value of 0 has
    no relative
    drift: then only the criteria's own maximum opens a range.

    Raises:
        BadInput: no range is left, or none can be told.
    """
    limit = limits.get(facts.name, KnobLimit())
    factor = limit.max_factor or default_max_drift_factor
    if first_value > 0:
        drift = f"drift from {first_value:g} by a factor of {factor:g} at most"
        lows, highs = [(first_value / factor, drift)], [(first_value * factor, drift)]
    elif limit.maximum is not None:
        lows = [(first_value, "the first value")]
        highs = [(limit.maximum, "the criteria's maximum")]
    else:
        raise BadInput(
            f"{facts.name} is {first_value:g} in the first baseline, so no relative drift can be told",
            remedy="Give the knob a maximum in the criteria file",
        )
    for bound, where, what in (
        (facts.minimum, lows, "the catalogue's minimum"),
        (limit.minimum, lows, "the criteria's minimum"),
        (facts.maximum, highs, "the catalogue's maximum"),
        (limit.maximum, highs, "the criteria's maximum"),
    ):
        if bound is not None:
            where.append((bound, what))
    (low, low_rule), (high, high_rule) = max(lows), min(highs)
    if low > high:
        raise BadInput(f"{facts.name} has no room: {low:g} ({low_rule}) to {high:g} ({high_rule})")
    return ValueRange(low=low, high=high, low_rule=low_rule, high_rule=high_rule)


def clipped(facts: KnobFacts, value: float, allowed: ValueRange) -> Scalar:
    """The value moved into the range and onto the knob's grid.

    Raises:
        BadInput: no value of the grid lies in the range.
    """
    inside = min(max(value, allowed.low), allowed.high)
    step = facts.step or (1.0 if facts.kind == "int" else None)
    if step is None:
        return inside
    for at in (round(inside / step), math.floor(inside / step), math.ceil(inside / step)):
        # Decimal steps such as 0.01 leave binary dust behind.
        on_grid = round(at * step, 9)
        if allowed.low <= on_grid <= allowed.high:
            return int(on_grid) if facts.kind == "int" else on_grid
    raise BadInput(f"{facts.name} has no multiple of {step:g} between {allowed.low:g} and {allowed.high:g}")
