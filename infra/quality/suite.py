"""Data-quality suites as data. Pure: Great Expectations itself is imported by the runner only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal[
    "ExpectColumnToExist",
    "ExpectColumnValuesToNotBeNull",
    "ExpectColumnValuesToBeBetween",
    "ExpectColumnValuesToBeUnique",
    "ExpectColumnValuesToBeInSet",
    "ExpectColumnValuesToMatchRegex",
    "ExpectColumnValueLengthsToBeBetween",
    "ExpectColumnDistinctValuesToContainSet",
    "ExpectColumnSumToBeBetween",
    "ExpectColumnMaxToBeBetween",
    "ExpectColumnMinToBeBetween",
]
Setting = bool | int | float | str | tuple[str, ...] | tuple[bool, ...] | None


class Expectation(BaseModel):
    """One expectation by the name of its Great Expectations class, with that class's arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    settings: Mapping[str, Setting] = Field(default_factory=dict)

    def text(self) -> str:
        """The expectation for a person."""
        inner = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.kind}({inner})"


class GateSuite(BaseModel):
    """A gate: its expectations and how many rows they need.

    Great Expectations passes every column expectation on zero rows and every suite without expectations, so
    the row counts are part of the gate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    expectations: tuple[Expectation, ...] = Field(min_length=1)
    min_rows: int = Field(ge=1)
    bucket_column: str = ""
    min_rows_per_bucket: Mapping[str, int] = Field(default_factory=dict)


class GateResult(BaseModel):
    """What a gate found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    passed: bool
    evaluated: int = Field(description="expectations that were evaluated")
    declared: int = Field(description="expectations that the suite holds")
    failures: tuple[str, ...] = Field(default=(), description="each with what was expected and what was found")
    rows: int

    def text(self) -> str:
        """The result in one line."""
        head = f"gate {self.name}: {self.rows} rows, {self.evaluated} of {self.declared} expectations evaluated"
        return f"{head}, passed" if self.passed else f"{head}, failed: {'; '.join(self.failures)}"


def exists(column: str) -> Expectation:
    """The column is there."""
    return Expectation(kind="ExpectColumnToExist", settings={"column": column})


def filled(column: str) -> Expectation:
    """No null. Nulls are skipped by every other expectation, so a column needs this one beside them."""
    return Expectation(kind="ExpectColumnValuesToNotBeNull", settings={"column": column})


def between(column: str, minimum: float | None, maximum: float | None, *, strict_minimum: bool = False) -> Expectation:
    """Every number lies in [minimum, maximum]; None is no bound."""
    settings: dict[str, Setting] = {"column": column, "min_value": minimum, "max_value": maximum}
    if strict_minimum:
        settings["strict_min"] = True
    return Expectation(kind="ExpectColumnValuesToBeBetween", settings=settings)


def unique(column: str) -> Expectation:
    """No value twice."""
    return Expectation(kind="ExpectColumnValuesToBeUnique", settings={"column": column})


def one_of(column: str, values: Sequence[str] | Sequence[bool]) -> Expectation:
    """Every value is one of these."""
    return Expectation(kind="ExpectColumnValuesToBeInSet", settings={"column": column, "value_set": tuple(values)})


def matches(column: str, regex: str) -> Expectation:
    """Every text matches."""
    return Expectation(kind="ExpectColumnValuesToMatchRegex", settings={"column": column, "regex": regex})


def not_blank(column: str) -> Expectation:
    """Every text has a character that is no blank."""
    return matches(column, r"\S")


def contains_all(column: str, values: Sequence[str]) -> Expectation:
    """Each of these values occurs."""
    return Expectation(
        kind="ExpectColumnDistinctValuesToContainSet",
        settings={"column": column, "value_set": tuple(values)},
    )


def sum_between(column: str, minimum: float | None, maximum: float | None) -> Expectation:
    """The column's sum lies in [minimum, maximum]."""
    return Expectation(
        kind="ExpectColumnSumToBeBetween",
        settings={"column": column, "min_value": minimum, "max_value": maximum},
    )
