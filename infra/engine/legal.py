"""Whether the installed engine could serve a configuration, decided before anything is started."""

from __future__ import annotations

from typing import NamedTuple

from infra.engine.catalogue import RESERVED, Catalogue, Knob, default_of
from infra.engine.config import Scalar, ServingConfig
from infra.engine.errors import UnknownKnob, UnreadableValue
from infra.engine.values import parse_value


class Violation(NamedTuple):
    """One reason why a configuration is not legal."""

    rule: str
    message: str


def check(config: ServingConfig, catalogue: Catalogue, *, model_max_len: int | None = None) -> list[Violation]:
    """Every rule that the whole configuration breaks; empty when it is legal.

    Judged is the resulting configuration, not one change by itself: values that are each in range can be
    impossible together. The cross rules are those of vLLM 0.32 (config/scheduler.py, verify_max_model_len).

    Args:
        config: what would be served.
        catalogue: of the installed engine.
        model_max_len: the model's own longest sequence, in tokens; stands in for an absent max_model_len.
    """
    found: list[Violation] = []
    if config.engine_build != catalogue.engine_build:
        found.append(
            Violation(
                "engine_build", f"the configuration is for {config.engine_build}, installed is {catalogue.engine_build}"
            )
        )
    values: dict[str, Scalar] = {}
    for name, raw in config.args.items():
        if name in RESERVED:
            found.append(Violation("reserved", f"{name} is set by the launcher and cannot be part of a configuration"))
            continue
        try:
            knob = catalogue.knob(name)
            values[name] = parse_value(knob, raw)
        except UnknownKnob as error:
            found.append(Violation("unknown_knob", error.message))
            continue
        except UnreadableValue as error:
            found.append(Violation("value", error.message))
            continue
        found += _rails(knob, values[name])
    return found + _cross_rules(values, catalogue, model_max_len)


def _rails(knob: Knob, value: Scalar) -> list[Violation]:
    note = knob.overlay
    if note is None or value is None:
        return []
    found = []
    if note.choices and str(value) not in note.choices:
        found.append(
            Violation(
                f"choices.{knob.name}", f"{knob.name}={value} is not one of {', '.join(note.choices)}: {note.meaning}"
            )
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        if note.max is not None and value > note.max:
            found.append(Violation(f"rail.{knob.name}", f"{knob.name}={value:g} is above its rail of {note.max:g}"))
        if note.min is not None and value < note.min:
            found.append(Violation(f"rail.{knob.name}", f"{knob.name}={value:g} is below its rail of {note.min:g}"))
        if note.step and (value / note.step) % 1:
            found.append(Violation(f"step.{knob.name}", f"{knob.name}={value:g} is no multiple of {note.step:g}"))
    return found


def _cross_rules(values: dict[str, Scalar], catalogue: Catalogue, model_max_len: int | None) -> list[Violation]:
    def number(name: str) -> float | None:
        value = values.get(name)
        if value is None and name in catalogue.knobs:
            value = default_of(catalogue.knobs[name])
        return None if value is None or isinstance(value, bool | str) else float(value)

    budget, seqs = number("max_num_batched_tokens"), number("max_num_seqs")
    length = number("max_model_len") or model_max_len
    long_prefill = number("long_prefill_token_threshold")
    active = number("max_num_active_seqs")
    found = []
    # Chunked prefill is on unless it is turned off (its default depends on the model; generation has it on).
    if values.get("enable_chunked_prefill") is False and budget is not None and length and budget < length:
        found.append(
            Violation(
                "budget_covers_length_without_chunking",
                f"max_num_batched_tokens={budget:g} is below max_model_len={length:g} "
                "while enable_chunked_prefill is off",
            )
        )
    if budget is not None and seqs is not None and budget < seqs:
        found.append(
            Violation("budget_covers_sequences", f"max_num_batched_tokens={budget:g} is below max_num_seqs={seqs:g}")
        )
    if long_prefill and length and long_prefill > length:
        found.append(
            Violation(
                "long_prefill_within_length",
                f"long_prefill_token_threshold={long_prefill:g} is above max_model_len={length:g}",
            )
        )
    if active is not None and seqs is not None and active > seqs:
        found.append(
            Violation("active_within_sequences", f"max_num_active_seqs={active:g} is above max_num_seqs={seqs:g}")
        )
    if model_max_len and length and length > model_max_len:
        found.append(
            Violation("length_within_model", f"max_model_len={length:g} is above the model's own {model_max_len}")
        )
    return found
