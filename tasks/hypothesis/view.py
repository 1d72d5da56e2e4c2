"""The engine's catalogue as the search sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from infra.engine.catalogue import Catalogue, Knob, default_of
from infra.engine.config import ServingConfig
from infra.engine.legal import check
from tasks.hypothesis.knobs import CatalogueView, KnobFacts
from tasks.hypothesis.proposals import Arguments
from tasks.hypothesis.records import Scalar

_KINDS: dict[str, Literal["bool", "int", "float", "text"]] = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "choice": "text",
    "str": "text",
}


def catalogue_view(catalogue: Catalogue) -> CatalogueView:
    """The knobs that may be moved: those with known rails or choices that hold one plain value.

    A text without choices is left out: no rule could tell a good value from a bad one.
    """
    return CatalogueView(
        knobs={knob.name: facts for knob in catalogue.tunable() if (facts := _facts(knob)) is not None}
    )


def _facts(knob: Knob) -> KnobFacts | None:
    overlay, kind = knob.overlay, _KINDS.get(knob.kind)
    if overlay is None or kind is None or knob.multiple:
        return None
    choices = overlay.choices or knob.choices or ()
    if kind == "text" and not choices:
        return None
    return KnobFacts(
        name=knob.name,
        knob_class=overlay.knob_class,
        kind=kind,
        minimum=overlay.min,
        maximum=overlay.max,
        step=overlay.step,
        choices=tuple(_choice(kind, choice) for choice in choices),
        default=default_of(knob),
        may_change_outputs=knob.may_change_outputs,
    )


def _choice(kind: str, text: str) -> Scalar:
    if kind == "int":
        return int(text)
    return float(text) if kind == "float" else text


def engine_objections(
    config: ServingConfig, catalogue: Catalogue, *, model_max_len: int | None = None
) -> Callable[[Arguments], Sequence[str]]:
    """What the installed engine has against arguments, couplings included: for `SearchRules.forbids`."""

    def forbids(arguments: Arguments) -> Sequence[str]:
        changed = config.with_args(dict(arguments))
        return [violation.message for violation in check(changed, catalogue, model_max_len=model_max_len)]

    return forbids
