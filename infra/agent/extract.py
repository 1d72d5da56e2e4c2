"""Exactly one JSON object out of a model's answer, or the reason why there is none. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from infra.errors import RatchetError

_BEGINS_OBJECT = re.compile(r'\{\s*(?:"|\})')


class NotOneObjectError(RatchetError):
    """An answer that does not hold exactly one JSON object."""


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if repeated := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"repeated keys: {', '.join(repeated)}")
    return dict(pairs)


def single_object(text: str) -> dict[str, object]:
    """The one JSON object of a text; prose and fences around it do not matter.

    The text is scanned by a JSON decoder, never split at fences, so that backticks inside strings stay. The
    same object twice counts as one. What begins like an object and cannot be read is an error, not a reason
    to look inside it for smaller ones.

    Raises:
        NotOneObjectError: no object, two different ones, or one that is broken; names which.
    """
    decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_repeats)
    found: dict[str, dict[str, object]] = {}  # by their text: to Python 1 and true are the same
    at = 0
    while begins := _BEGINS_OBJECT.search(text, at):
        try:
            value, at = decoder.raw_decode(text, begins.start())
        except ValueError as fault:
            raise NotOneObjectError(f"the answer's JSON object cannot be read: {fault}") from None
        except RecursionError:
            raise NotOneObjectError("the answer's JSON object is nested too deeply") from None
        found.setdefault(json.dumps(value, sort_keys=True), value)
    if not found:
        raise NotOneObjectError("the answer holds no JSON object")
    if len(found) > 1:
        raise NotOneObjectError(f"the answer holds {len(found)} different JSON objects; exactly one is wanted")
    return next(iter(found.values()))
