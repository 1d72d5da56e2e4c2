"""From an idea to a hypothesis or a refusal: every source passes through `admit` (spec H1 to H5). Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from infra.engine.config import ServingConfig
from infra.errors import BadInput
from tasks.hypothesis.knobs import CatalogueView, KnobFacts, allowed_range, clipped, normalised, same_idea
from tasks.hypothesis.records import Hypothesis, IdeaIdentity, RefusedIdea, RejectedIdea, Scalar
from tasks.shared.records import KnobLimit, Record

Arguments = Mapping[str, Scalar]


class Proposal(Record):
    """An idea before anyone judged it.

    `named` says that the source chose this very value: it is refused outside the limits. A value that follows
    from a direction (a playbook's factor) is moved to their edge and onto the knob's grid.
    """

    knob: str
    value: Scalar
    source: Literal["playbook", "optimiser", "agent"]
    named: bool = True
    metric: str = "throughput_per_gpu"
    expected_change_pct: float | None = None
    risk: float = Field(default=0.5, ge=0, le=1)
    because: str
    bottleneck: str = ""
    validate_by: str
    holds_if: str
    worst_case: str
    may_get_worse: tuple[str, ...] = ()
    may_change_outputs: bool = False


def nothing_forbids(arguments: Arguments) -> Sequence[str]:
    """The legality check of a caller that has none."""
    del arguments
    return ()


@dataclass(frozen=True)
class SearchRules:
    """Everything that a proposal is judged by.

    Args:
        config: the configuration that the change is made to.
        first_config: the campaign's first baseline, from which drift is counted (H5).
        limits: the criteria's limits per knob; structural knobs move only when they are named here (H4).
        history: remembered rejections (H3).
        interacts_with: the adoption in force: an idea rejected before it may be tried once more, one a round; empty
            without one, or when this round has its retest.
        forbids: what the engine's own rules have against these arguments, couplings included; empty when
            legal.
    """

    config: ServingConfig
    first_config: ServingConfig
    view: CatalogueView
    limits: Mapping[str, KnobLimit]
    default_max_drift_factor: float
    history: Sequence[RejectedIdea]
    engine_build: str
    model: str
    workload: str
    interacts_with: str = ""
    forbids: Callable[[Arguments], Sequence[str]] = field(default=nothing_forbids)


def present_value(config: ServingConfig, facts: KnobFacts) -> Scalar | None:
    """The knob's value in a configuration: its argument, else the engine's default, else None."""
    value = config.args.get(facts.name, facts.default)
    return None if value is None else normalised(facts, value)


def _refused(proposal: Proposal, rule: str, text: str) -> RefusedIdea:
    return RefusedIdea(
        knob=proposal.knob,
        value=proposal.value,
        source=proposal.source,
        rule=rule,
        text=f"{proposal.knob}: {text}",
    )


def admit(proposal: Proposal, rules: SearchRules) -> Hypothesis | RefusedIdea:
    """The hypothesis, or the rule and the data that refuse it."""
    name = rules.view.canonical(proposal.knob)
    if name is None:
        return _refused(proposal, "H4 search space", "is no knob of the catalogue")
    facts = rules.view.knobs[name]
    if facts.kind == "int" and not proposal.named and isinstance(proposal.value, float):
        proposal = proposal.model_copy(update={"value": round(proposal.value)})  # a factor's result
    if facts.knob_class == "structural" and name not in rules.limits:
        return _refused(proposal, "H4 structural", "is structural and the criteria set no limit for it")
    try:
        now = present_value(rules.config, facts)
        value = _within_limits(proposal, facts, rules)
    except BadInput as fault:
        return _refused(proposal, "H4 rails, H5 drift", fault.message)
    identity = IdeaIdentity(
        knob=facts.name,
        value=value,
        engine_build=rules.engine_build,
        model=rules.model,
        workload=rules.workload,
    )
    old = rejected_before(identity, facts, rules.history, rules.view.canonical)
    under_it = identity.model_copy(update={"interacts_with": rules.interacts_with})
    retest = (
        rules.interacts_with
        if old and not rejected_before(under_it, facts, rules.history, rules.view.canonical)
        else ""
    )
    objection = _objection(facts, now, value, rules, None if retest else old)
    return _refused(proposal, *objection) if objection else _hypothesis(proposal, facts, now, value, rules, retest)


def _objection(
    facts: KnobFacts, now: Scalar | None, value: Scalar, rules: SearchRules, old: RejectedIdea | None
) -> tuple[str, str] | None:
    """What speaks against a value that is within its limits: (rule, data)."""
    if now is not None and same_idea(facts, value, now):
        return "H2 one switch", f"is {now} already; {value} is no move"
    if old is not None:
        gain = "" if old.throughput_change_pct is None else f", throughput {old.throughput_change_pct:+.1f} %"
        return "H3 rejected before", (
            f"{value} was measured in campaign {old.campaign} as {old.identity.value}: {old.outcome_class}"
            f"{gain} ({old.reason}); record {old.trial_key}"
        )
    passed = {argument: v for argument, v in rules.config.args.items() if v is not None}
    against = rules.forbids({**passed, facts.name: value})
    return ("H4 couplings", "; ".join(against)) if against else None


def _within_limits(proposal: Proposal, facts: KnobFacts, rules: SearchRules) -> Scalar:
    """The value that may be tried.

    Raises:
        BadInput: not a value of the knob, or outside its rails or drift although it was named.
    """
    moved = not proposal.named and facts.kind in ("int", "float") and not isinstance(proposal.value, str | bool)
    value = proposal.value if moved else normalised(facts, proposal.value)
    if facts.knob_class == "choice" or isinstance(value, str | bool):
        return value
    first = present_value(rules.first_config, facts)
    if first is None or isinstance(first, str):
        raise BadInput(f"the first baseline's value of {facts.name} is not known, so its drift cannot be told")
    allowed = allowed_range(facts, float(first), rules.limits, rules.default_max_drift_factor)
    if moved:
        return clipped(facts, float(value), allowed)
    if not allowed.low <= value <= allowed.high:
        rule = allowed.low_rule if value < allowed.low else allowed.high_rule
        raise BadInput(f"{value} lies outside {allowed.low:g} to {allowed.high:g} ({rule})")
    return value


def rejected_before(
    identity: IdeaIdentity,
    facts: KnobFacts,
    history: Sequence[RejectedIdea],
    canonical: Callable[[str], str | None],
) -> RejectedIdea | None:
    """The newest remembered rejection of the same idea; None when it may be tried.

    Same are equal values and values within the knob's step, of the same engine, model and workload. Naming an
    adoption allows one retest: a rejection under that same adoption refuses again.
    """
    for old in reversed(history):
        told = old.identity
        if (told.engine_build, told.model, told.workload) != (
            identity.engine_build,
            identity.model,
            identity.workload,
        ):
            continue
        if canonical(told.knob) != identity.knob:
            continue
        if identity.interacts_with and told.interacts_with != identity.interacts_with:
            continue
        try:
            old_value = normalised(facts, told.value)
        except BadInput:
            continue
        if same_idea(facts, old_value, identity.value):
            return old
    return None


def _hypothesis(
    proposal: Proposal, facts: KnobFacts, now: Scalar | None, value: Scalar, rules: SearchRules, retest: str
) -> Hypothesis:
    key = json.dumps([facts.name, value, rules.config.config_hash()], sort_keys=True)
    back = "remove the argument" if facts.name not in rules.config.args else f"set it back to {now}"
    return Hypothesis(
        id=f"h-{hashlib.sha256(key.encode()).hexdigest()[:12]}",
        knob=facts.name,
        knob_class=facts.knob_class,
        value_from=now,
        value_to=value,
        metric=proposal.metric,
        expected_change_pct=proposal.expected_change_pct,
        because=proposal.because,
        bottleneck=proposal.bottleneck,
        validate_by=proposal.validate_by,
        holds_if=proposal.holds_if,
        worst_case=proposal.worst_case,
        may_get_worse=proposal.may_get_worse,
        may_change_outputs=proposal.may_change_outputs or facts.may_change_outputs,
        interacts_with=retest,
        rollback=f"traffic back to the old configuration, which stays warm; in the configuration {back}",
        source=proposal.source,
    )
