"""`ratchet verdict`: two sets of readings judged by committed criteria; a claim is recomputed (spec C3, C4)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.errors import BadInput
from infra.revision import is_committed_blob
from tasks.sandbox.records import MetricComparison
from tasks.shared.criteria import criteria_hash, parse_criteria
from tasks.shared.limits import any_reached, judge_guard, judge_primary
from tasks.shared.metric_names import METRICS, RATES
from tasks.shared.outcomes import combine, judgement
from tasks.shared.records import Criteria, Judgement, Outcome, Reading, Reason
from tasks.shared.statistics import change

TOLERANCE_PCT_POINTS = 0.05
"""What a claim may be off by, being rounded. No field of the claim: it would be the claimant's to choose."""


class ClaimedAbsolute(BaseModel):
    """A change without a percentage: the baseline is 0, as error rates and OOM counts often are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    change_abs: float = Field(description="candidate minus baseline, in the metric's unit (% for a rate)")


class Claim(BaseModel):
    """What a change request says: the primary metric that it moves, and what every guard reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    primary: str
    change_pct: float
    guards: dict[str, float | ClaimedAbsolute] = Field(description="change in %, or as an absolute one")


def _readings(path: Path) -> dict[str, Reading]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise BadInput(
            f"{path} holds no metric", remedy='Write {"throughput_per_gpu": {"value": 1840, "unit": "tok/s"}, …}'
        )
    found: dict[str, Reading] = {}
    for name, item in raw.items():
        try:
            if isinstance(item, dict) and "status" not in item and set(item) <= {"value", "unit", "samples"}:
                reading = Reading.of(
                    item.get("value"),
                    item.get("unit", ""),
                    samples=item.get("samples"),
                    source=str(path),
                    cause=f"{path} gives no value",
                )
            else:
                reading = Reading.model_validate(item)
        except (ValidationError, TypeError) as error:
            raise BadInput(f"{path}: {name} is no reading: {error}") from None
        found[name] = _in_unit(name, reading, path)
    return found


def _in_unit(name: str, reading: Reading, path: Path) -> Reading:
    """The reading in the unit that limits are written in. A ratio taken for per cent would be off by a hundred.

    Raises:
        BadInput: a number in another unit, or in none.
    """
    spec = METRICS.get(name)
    if spec is None or reading.value is None or reading.unit == spec.unit:
        return reading
    if name in RATES and reading.unit == "ratio":
        return reading.model_copy(update={"value": reading.value * 100, "unit": spec.unit})
    given = reading.unit or "no unit"
    remedy = f"Give it in {spec.unit}" + (', or as a ratio with the unit "ratio"' if name in RATES else "")
    raise BadInput(f"{path}: {name} is given in {given}, {spec.unit} is expected", remedy=remedy)


def judge_files(
    criteria_path: Path,
    baseline_path: Path,
    candidate_path: Path,
    claim_path: Path | None,
) -> tuple[Outcome, list[str]]:
    """The outcome and every reason as a line."""
    try:
        text = criteria_path.read_text()
    except FileNotFoundError:
        raise BadInput(f"{criteria_path} does not exist") from None
    criteria = parse_criteria(text, origin=str(criteria_path))
    pinned = is_committed_blob(criteria_path)
    baseline, candidate = _readings(baseline_path), _readings(candidate_path)
    comparisons = []
    for name in sorted(set(baseline) | set(candidate)):
        missing = Reading.unknown("it was not handed in")
        b, c = baseline.get(name, missing), candidate.get(name, missing)
        pct, absolute = change(
            b, c, absolute_floor=next((g.absolute_floor for g in criteria.guards if g.name == name), 0.0)
        )
        comparisons.append(MetricComparison(metric=name, baseline=b, candidate=c, change_pct=pct, change_abs=absolute))
    said = _judge_handed_in({c.metric: c for c in comparisons}, criteria)
    reasons = list(said.reasons)
    if not pinned:
        reasons.append(
            Reason(
                rule="unpinned",
                outcome=Outcome.INCONCLUSIVE,
                text=f"unpinned: {criteria_path} is not the committed file",
            )
        )
    if claim_path is not None:
        reasons += _check_claim(claim_path, comparisons, criteria)
    outcome = combine([said.outcome, *(r.outcome for r in reasons[len(said.reasons) :])])
    # Handed-in numbers come without pairs, so their noise is taken as 0 and said to be.
    unpinned = "" if pinned else " (unpinned)"
    lines = [
        f"{outcome.value} by criteria {criteria_hash(criteria)[:12]}{unpinned}; nothing is known of the numbers' "
        "noise, 0 % is taken"
    ]
    return outcome, lines + [f"  {r.outcome.value:12} {r.rule}: {r.text}" for r in reasons]


def _judge_handed_in(found: dict[str, MetricComparison], criteria: Criteria) -> Judgement:
    """C2 on two numbers a metric: a primary metric at its target, every guard inside its limit."""
    missing = Reading.unknown("it was not handed in")

    def sides(name: str) -> tuple[Reading, Reading]:
        return (found[name].baseline, found[name].candidate) if name in found else (missing, missing)

    primaries = [judge_primary(m, *sides(m.name), floor_pct=0.0) for m in criteria.primary]
    guards = [(g, judge_guard(g, *sides(g.name), floor_pct=0.0)) for g in criteria.guards]
    silent = [r for g, r in guards if not g.required and r.outcome is Outcome.NO_DATA]
    return judgement([*any_reached(primaries), *(r for _, r in guards if r not in silent)], silent=silent)


def _check_claim(path: Path, comparisons: list[MetricComparison], criteria: Criteria) -> list[Reason]:
    try:
        claim = Claim.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except ValidationError as error:
        raise BadInput(f"{path} is no claim: {error}") from None
    by_name = {c.metric: c for c in comparisons}
    found = []
    if claim.primary not in {m.name for m in criteria.primary}:
        found.append(Reason(rule="claim", outcome=Outcome.FAIL, text=f"{claim.primary} is no primary metric"))
    silent = sorted({g.name for g in criteria.guards if g.required} - set(claim.guards))
    if silent:
        found.append(Reason(rule="claim", outcome=Outcome.FAIL, text=f"the claim says nothing of {', '.join(silent)}"))
    for name, said in {claim.primary: claim.change_pct, **claim.guards}.items():
        found.append(_recomputed(name, said, by_name.get(name)))
    return found


def _recomputed(name: str, said: float | ClaimedAbsolute, comparison: MetricComparison | None) -> Reason:
    if isinstance(said, ClaimedAbsolute):
        claimed, measured = said.change_abs, comparison.change_abs if comparison else None
        unit = comparison.candidate.unit if comparison else ""
        # Rounded as finely as a percentage may be.
        allowed = max(1e-9, abs(measured or 0.0) * TOLERANCE_PCT_POINTS / 100)
        shown, remedy = "+g", ""
    else:
        claimed, measured, unit = said, comparison.change_pct if comparison else None, "%"
        allowed, shown = TOLERANCE_PCT_POINTS, "+.2f"
        no_percentage = measured is None and comparison is not None and comparison.change_abs is not None
        remedy = '; the baseline is 0, so claim {"change_abs": …}' if no_percentage else ""
    holds = measured is not None and abs(measured - claimed) <= allowed
    known = "unknown" if measured is None else f"{measured:{shown}} {unit}".rstrip()
    return Reason(
        rule=f"claim {name}",
        outcome=Outcome.PASS if holds else Outcome.FAIL,
        observed=measured,
        limit=claimed,
        unit=unit,
        text=f"claimed {claimed:{shown}} {unit}".rstrip() + f", recomputed {known}{remedy}",
    )
