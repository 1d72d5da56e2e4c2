"""A reading: a value, a confirmed zero, or unknown with its cause. Unknown never becomes a number."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mark = Literal["exact", "below_first_bound", "in_overflow", "few_samples"]


class Reading(BaseModel):
    """One measured number and how far it can be trusted.

    A marked quantile (anything but `exact`) may be shown and may not by itself pass or fail a guard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["value", "zero", "unknown"]
    value: float | None = Field(default=None, description="in `unit`; None exactly when unknown")
    unit: str = Field(default="", description="tok/s, ms, ratio, bytes, count …")
    mark: Mark = "exact"
    samples: float | None = Field(default=None, description="observations behind the value, where known")
    source: str = Field(default="", description="the query or file that gave it")
    cause: str = Field(default="", description="why it is unknown, or why it is marked")

    @model_validator(mode="after")
    def _status_agrees_with_value(self) -> Self:
        if self.status == "unknown" and self.value is not None:
            raise ValueError("an unknown reading carries no value")
        if self.status == "unknown" and not self.cause:
            raise ValueError("an unknown reading names its cause")
        if self.status != "unknown" and (self.value is None or not math.isfinite(self.value)):
            raise ValueError("a known reading is a finite number")
        if self.status == "zero" and self.value != 0:
            raise ValueError("a confirmed zero is 0")
        return self

    @classmethod
    def of(
        cls,
        value: float | None,
        unit: str,
        *,
        source: str = "",
        samples: float | None = None,
        mark: Mark = "exact",
        cause: str = "",
    ) -> Reading:
        """A reading of a number; None, NaN and infinity become unknown."""
        if value is None or not math.isfinite(value):
            return cls.unknown(cause or f"the source gave {value}", unit=unit, source=source)
        status: Literal["value", "zero"] = "zero" if value == 0 else "value"
        return cls(status=status, value=float(value), unit=unit, source=source, samples=samples, mark=mark, cause=cause)

    @classmethod
    def unknown(cls, cause: str, *, unit: str = "", source: str = "") -> Reading:
        """A reading that could not be taken, with the reason."""
        return cls(status="unknown", unit=unit, source=source, cause=cause)

    @property
    def judges(self) -> bool:
        """Whether the reading may pass or fail a guard by itself."""
        return self.status != "unknown" and self.mark == "exact"

    def text(self) -> str:
        """The reading for a person: number and unit, or why there is none."""
        if self.value is None:
            return f"unknown ({self.cause})"
        tail = "" if self.mark == "exact" else f" [{self.mark.replace('_', ' ')}]"
        return f"{self.value:,.4g} {self.unit}".rstrip() + tail
