"""Texts into a knob's values: strict, with units only where the knob has one."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation

from infra.engine.catalogue import Catalogue, Knob
from infra.engine.config import Scalar, ServingConfig
from infra.engine.errors import UnreadableValue

# "k" is a thousand and "K" 1,024, as the engine itself reads them; with B or iB it is bytes.
COUNT_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BYTE_SUFFIX = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
TRUE, FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
UNSET = {"none", "null", "default"}
NUMBER = re.compile(r"(?P<number>[+-]?\d+(?:[_,]\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<suffix>[A-Za-z%]*)")


def parse_value(knob: Knob, text: Scalar) -> Scalar:
    """A value of `knob` in its one form: 256, "256" and "256.0" are the same integer.

    None, "none" and "default" mean not passed. Units: "4k" where the engine or the overlay counts tokens,
    requests or bytes; "8 GB" and "8 GiB" where the overlay says bytes or GiB.

    Raises:
        UnreadableValue: not a value of this knob; says what would be one.
    """
    if text is None or (isinstance(text, str) and text.strip().lower() in UNSET and not _is_choice(knob, text)):
        if not knob.optional and text is not None and knob.kind == "choice":
            raise _refuse(knob, text, "it is not a choice")
        return None
    if knob.multiple:
        return " ".join(str(_one(knob, part)) for part in str(text).split())
    return _one(knob, text)


def _is_choice(knob: Knob, text: str) -> bool:
    return text.strip() in (knob.choices or ())


def _one(knob: Knob, text: Scalar) -> Scalar:
    if knob.kind == "bool":
        return _boolean(knob, text)
    if knob.kind in ("int", "float"):
        value = _number(knob, text)
        if knob.choices and str(value) not in knob.choices:
            raise _refuse(knob, text, f"choices: {', '.join(knob.choices)}")
        return value
    if knob.kind == "json":
        return _json(knob, text)
    plain = str(text).strip() if not isinstance(text, bool) else str(text)
    if knob.kind == "choice" and plain not in (knob.choices or ()):
        folded = {choice.lower(): choice for choice in knob.choices or ()}
        if plain.lower() not in folded:
            raise _refuse(knob, text, f"choices: {', '.join(knob.choices or ())}")
        return folded[plain.lower()]
    if not plain:
        raise _refuse(knob, text, "it is empty")
    return plain


def _refuse(knob: Knob, text: Scalar, why: str) -> UnreadableValue:
    return UnreadableValue(f"{text!r} is not a value of {knob.name} ({knob.kind}): {why}")


def _boolean(knob: Knob, text: Scalar) -> bool:
    if isinstance(text, bool):
        return text
    word = str(text).strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise _refuse(knob, text, "true or false")


def _number(knob: Knob, text: Scalar) -> int | float:
    if isinstance(text, bool):
        raise _refuse(knob, text, "a number is wanted")
    match = NUMBER.fullmatch(str(text).strip())
    if match is None:
        raise _refuse(knob, text, "a number is wanted")
    try:
        number = Decimal(match["number"].replace(",", "").replace("_", ""))
    except InvalidOperation:
        raise _refuse(knob, text, "a number is wanted") from None
    number *= _factor(knob, text, match["suffix"])
    if knob.kind == "int":
        if number != number.to_integral_value():
            raise _refuse(knob, text, "a whole number is wanted")
        return int(number)
    value = float(number)
    return int(value) if value.is_integer() else value


def _factor(knob: Knob, text: Scalar, suffix: str) -> Decimal:
    if not suffix:
        return Decimal(1)
    unit = knob.overlay.unit if knob.overlay else ""
    if suffix == "%" and unit == "ratio":
        return Decimal("0.01")
    if unit in ("bytes", "GiB") and suffix in BYTE_SUFFIX:
        return Decimal(BYTE_SUFFIX[suffix]) / (2**30 if unit == "GiB" else 1)
    if (unit in ("tokens", "requests", "bytes") or knob.human_readable) and suffix in COUNT_SUFFIX:
        return Decimal(COUNT_SUFFIX[suffix])
    if suffix == unit or (suffix == "x" and not unit):
        return Decimal(1)
    takes = f"it is counted in {unit}" if unit else "it has no unit"
    raise _refuse(knob, text, f"unit {suffix!r} is not known here; {takes}")


def _json(knob: Knob, text: Scalar) -> str:
    try:
        return json.dumps(json.loads(str(text)), sort_keys=True, separators=(",", ":"))
    except json.JSONDecodeError as error:
        raise _refuse(knob, text, f"JSON is wanted ({error})") from None


def normalised(config: ServingConfig, catalogue: Catalogue) -> ServingConfig:
    """The configuration with each argument in its one form, so that equal configurations hash equally.

    Raises:
        UnknownKnob: an argument that the engine does not have.
        UnreadableValue: a value that is none.
    """
    args = {name: parse_value(catalogue.knob(name), value) for name, value in config.args.items()}
    return ServingConfig(engine_build=config.engine_build, model=config.model, args=args, env=config.env)
