"""Where the optimiser may look: the same limits that proposals are judged by. Pure."""

from __future__ import annotations

from collections.abc import Collection

from infra.errors import BadInput
from infra.search import KnobSpace
from tasks.hypothesis.knobs import KnobFacts, allowed_range
from tasks.hypothesis.proposals import SearchRules, present_value


def search_space(rules: SearchRules, knobs: Collection[str], taken: Collection[str] = ()) -> tuple[KnobSpace, ...]:
    """The space of these knobs without those already taken, in order of name.

    Left out are knobs that the catalogue lacks, structural ones that the criteria do not name, and those without
    a known present value or without room (a value of 0 has no relative drift).
    """
    found = []
    for name in sorted(set(knobs) - set(taken)):
        facts = rules.view.knobs.get(name)
        if facts is None or (facts.knob_class == "structural" and name not in rules.limits):
            continue
        try:
            found.append(_space(facts, rules))
        except (BadInput, ValueError):
            continue
    return tuple(found)


def _space(facts: KnobFacts, rules: SearchRules) -> KnobSpace:
    now, first = present_value(rules.config, facts), present_value(rules.first_config, facts)
    if facts.kind == "bool":
        return KnobSpace(knob=facts.name, kind="choice", choices=(True, False), current=now)
    if facts.choices or facts.kind == "text":
        return KnobSpace(knob=facts.name, kind="choice", choices=facts.choices, current=now)
    if first is None or isinstance(first, str | bool):
        raise BadInput(f"the first value of {facts.name} is not known")
    allowed = allowed_range(facts, float(first), rules.limits, rules.default_max_drift_factor)
    kind = "int" if facts.kind == "int" else "float"
    return KnobSpace.model_validate(
        {"knob": facts.name, "kind": kind, "current": now, "low": allowed.low, "high": allowed.high, "step": facts.step}
    )
