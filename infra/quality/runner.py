"""Runs a suite with Great Expectations and believes nothing that was not evaluated.

Importing Great Expectations takes seconds and 250 MB, so it happens on the first run, not on import.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infra.quality.suite import Expectation, GateResult, GateSuite

if TYPE_CHECKING:
    import pandas as pd

MAX_TEXT = 300


def run_gate(suite: GateSuite, rows: Iterable[Mapping[str, object]]) -> GateResult:
    """Runs a gate over rows (one mapping a row, equal keys)."""
    import pandas as pd

    return run_suite(
        pd.DataFrame(list(rows)),
        suite.expectations,
        name=suite.name,
        min_rows=suite.min_rows,
        bucket_column=suite.bucket_column,
        min_rows_per_bucket=suite.min_rows_per_bucket,
    )


def run_suite(
    frame: pd.DataFrame,
    expectations: Sequence[Expectation],
    *,
    name: str,
    min_rows: int,
    bucket_column: str = "",
    min_rows_per_bucket: Mapping[str, int] | None = None,
) -> GateResult:
    """Runs expectations over a frame; never raises for what the data look like.

    It passes only when there are rows enough (also per bucket), at least one expectation was declared, every
    declared one was evaluated, none raised and all hold.
    """
    failures: list[str] = []
    if len(frame) < (needed := max(1, min_rows)):
        failures.append(f"{len(frame)} rows, {needed} are needed")
    failures += _bucket_failures(frame, bucket_column, min_rows_per_bucket or {})
    failures += _column_failures(frame, expectations)
    if not expectations:
        failures.append("the suite declares no expectation, so nothing was checked")
    evaluated = 0
    # An empty frame passes every column expectation: the count above has failed the gate already.
    if expectations and len(frame):
        try:
            results = _validate(frame, expectations, name)
        except Exception as fault:  # whatever the library raises fails the gate
            failures.append(f"the suite could not be evaluated: {type(fault).__name__}: {_short(str(fault))}")
        else:
            evaluated = len(results)
            failures += [_failure_text(result) for result in results if not result.success]
    if evaluated != len(expectations) and not (expectations and not len(frame)):
        failures.append(f"{evaluated} expectations were evaluated, {len(expectations)} are declared")
    return GateResult(
        name=name,
        passed=not failures,
        evaluated=evaluated,
        declared=len(expectations),
        failures=tuple(failures),
        rows=len(frame),
    )


def _bucket_failures(frame: pd.DataFrame, column: str, fewest: Mapping[str, int]) -> list[str]:
    if not fewest:
        return []
    if column not in frame.columns:
        return [f"no column {column}, so the rows per bucket cannot be counted"]
    counts = frame[column].value_counts()
    return [
        f"{int(counts.get(bucket, 0))} rows with {column}={bucket}, {needed} are needed"
        for bucket, needed in fewest.items()
        if int(counts.get(bucket, 0)) < needed
    ]


def _column_failures(frame: pd.DataFrame, expectations: Sequence[Expectation]) -> list[str]:
    """What the library lets through: a column named in another case, and infinite numbers inside an open range."""
    if not len(frame):
        return []
    columns = dict.fromkeys(str(e.settings["column"]) for e in expectations if "column" in e.settings)
    failures = [
        f"no column {name}; there are {', '.join(map(str, frame.columns))}" for name in columns if name not in frame
    ]
    for name in columns:
        if name in frame and frame[name].dtype.kind == "f" and (infinite := int(_infinite(frame[name]).sum())):
            failures.append(f"{infinite} values of {name} are infinite")
    return failures


def _infinite(values: pd.Series[Any]) -> pd.Series[bool]:
    return values.abs() == math.inf


def _validate(frame: pd.DataFrame, expectations: Sequence[Expectation], name: str) -> Sequence[Any]:
    # Read at import: nothing may leave this machine.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import great_expectations.expectations as classes

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    suite = gx.ExpectationSuite(name=name)
    for expectation in expectations:
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in expectation.settings.items()}
        suite.add_expectation(getattr(classes, expectation.kind)(**settings))
    asset = context.data_sources.add_pandas("memory").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    return list(batch.validate(suite).results)


def _failure_text(result: Any) -> str:
    config = result.expectation_config
    settings = {k: v for k, v in config.kwargs.items() if k != "batch_id" and v is not None}
    expected = f"{config.type}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"
    raised = _raised(result.exception_info)
    if raised:
        return f"{expected} raised: {_short(raised)}"
    detail = result.result or {}
    found = [
        f"{label} {detail[key]}"
        for key, label in (
            ("observed_value", "found"),
            ("unexpected_count", "unexpected values:"),
            ("partial_unexpected_list", "for example"),
        )
        if detail.get(key) not in (None, [])
    ]
    return _short(f"{expected} does not hold: {', '.join(found) or 'no detail given'}")


def _raised(info: Mapping[str, Any] | None) -> str:
    """The exception's message; it lies directly in the mapping or one level deeper, under the metric's id."""
    for entry in (info or {}, *(v for v in (info or {}).values() if isinstance(v, Mapping))):
        if entry.get("raised_exception"):
            return str(entry.get("exception_message") or "an exception without a message")
    return ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
