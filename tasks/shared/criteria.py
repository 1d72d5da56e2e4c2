"""Reads a criteria file: prose for people around exactly one fenced YAML block for the machine (spec C1).
Pure.

Every fault is refused with its place: a misspelt key that vanished, or a duration in hours taken for seconds,
would judge every later change by a rule that nobody wrote.
"""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from infra.errors import BadInput
from tasks.shared.criteria_checks import faults
from tasks.shared.records import Criteria

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)\s*$")
_UNITS = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_pct": "per cent",
    "_abs": "the metric's own unit",
    "_tokens": "tokens",
    "share": "a share between 0 and 1",
    "_factor": "a factor",
}

_PLAIN = {"float_type": "a number", "int_type": "a whole number", "bool_type": "true or false"}


def parse_criteria(text: str, origin: str) -> Criteria:
    """The machine's part of a criteria file.

    Args:
        text: the whole Markdown file.
        origin: what to call it in messages, e.g. its path and commit.

    Raises:
        BadInput: no YAML block or more than one, an unknown key, a value of the wrong type or unit, or rules
            that contradict each other; one message names every fault and its place.
    """
    block = _only_block(text, origin)
    try:
        data = yaml.load(block, Loader=_OnceLoader)  # noqa: S506 - derives from SafeLoader
    except yaml.YAMLError as error:
        raise BadInput(f"{origin}: the YAML block does not parse: {_one_line(error)}") from None
    if not isinstance(data, dict):
        raise BadInput(f"{origin}: the YAML block holds {type(data).__name__}, not keys and values")
    problems = [*_unknown_keys(data, Criteria, ""), *_guard_limits(data)]
    if problems:
        raise BadInput(f"{origin}: {'; '.join(problems)}")
    try:
        # JSON mode: lists become tuples, and text never becomes a number.
        criteria = Criteria.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise BadInput(f"{origin}: {'; '.join(_explained(error))}") from None
    problems = list(faults(criteria))
    if problems:
        raise BadInput(f"{origin}: {'; '.join(problems)}")
    return criteria


def criteria_hash(criteria: Criteria) -> str:
    """sha256 of the parsed criteria: prose and order of keys do not change it, any rule does."""
    return criteria.content_hash()


def _only_block(text: str, origin: str) -> str:
    blocks: list[str] = []
    fence, kind, start, lines = "", "", 0, [*text.splitlines()]
    for number, line in enumerate(lines):
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence, kind, start = match.group(1), match.group(2).lower(), number + 1
        elif match and not match.group(2) and match.group(1).startswith(fence):
            if kind in {"yaml", "yml"}:
                blocks.append("\n".join(lines[start:number]))
            fence = ""
    if fence and kind in {"yaml", "yml"}:
        raise BadInput(f"{origin}: the ```yaml block of line {start} is never closed")
    if not blocks:
        raise BadInput(f"{origin}: there is no ```yaml block", remedy="Put the machine's part into exactly one")
    if len(blocks) > 1:
        raise BadInput(f"{origin}: there are {len(blocks)} ```yaml blocks", remedy="Keep one; quote others as ```text")
    return blocks[0]


class _OnceLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, of which YAML would silently keep the last."""


def _mapping(loader: _OnceLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    return dict(loader.construct_mapping(node, deep=True))


_OnceLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()


def _unknown_keys(data: Any, annotation: Any, path: str) -> Iterator[str]:
    """Every key that no record knows, with the nearest that it does."""
    model, item = _shape(annotation)
    if model is not None and isinstance(data, dict):
        fields = model.model_fields
        for key, value in data.items():
            where = f"{path}.{key}" if path else str(key)
            if key in fields:
                yield from _unknown_keys(value, fields[key].annotation, where)
                continue
            near = [f for f in fields if f.startswith(f"{key}_")] or difflib.get_close_matches(str(key), fields, 2, 0.6)
            hint = f"; did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"; known: {', '.join(fields)}"
            yield f"`{where}` is not a known key{hint}{_unit_hint(near[0], value) if near else ''}"
    elif item is not None and isinstance(data, list):
        for index, value in enumerate(data):
            yield from _unknown_keys(value, item, f"{path}[{index}]")
    elif item is not None and isinstance(data, dict):
        for key, value in data.items():
            yield from _unknown_keys(value, item, f"{path}.{key}")


def _shape(annotation: Any) -> tuple[type[BaseModel] | None, Any]:
    """(record type, None) of a record, (None, item type) of a tuple or dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, None
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {typing.Union, types.UnionType}:
        return next((s for s in map(_shape, args) if s != (None, None)), (None, None))
    if origin is tuple and args:
        return None, args[0]
    if origin is dict:
        return None, args[1]
    return None, None


def _guard_limits(data: dict[str, Any]) -> Iterator[str]:
    """Guards with no limit or several, told before types so that the message names the guard."""
    limits = ("max_increase_pct", "max_increase_abs", "max_value")
    guards = data.get("guards")
    for index, guard in enumerate(guards if isinstance(guards, list) else []):
        if isinstance(guard, dict):
            given = [name for name in limits if guard.get(name) is not None]
            if len(given) != 1:
                yield (
                    f"guards[{index}] ({guard.get('name', 'no name')}) has {len(given)} limits"
                    f"{' (' + ', '.join(given) + ')' if given else ''}; give one of {', '.join(limits)}"
                )
    for name in ("primary", "guards", "canary_steps"):
        if name in data and not data[name]:
            yield f"`{name}` is empty; name at least one"
        elif name not in data:
            yield f"`{name}` is missing; name at least one"


def _unit_hint(name: str, value: Any) -> str:
    unit = next((u for suffix, u in _UNITS.items() if name.endswith(suffix)), "")
    if not unit:
        return ""
    return f" (in {unit}, a plain number" + (f", not {value!r})" if isinstance(value, str) else ")")


def _explained(error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        where = re.sub(r"\.(\d+)", r"[\1]", ".".join(str(p) for p in item["loc"])) or "as a whole"
        given = item.get("input")
        field = str(next((p for p in reversed(item["loc"]) if isinstance(p, str)), ""))
        if item["type"] == "missing":
            yield f"`{where}` is missing"
        elif isinstance(given, str) and item["type"] in {"float_type", "int_type", "bool_type"}:
            yield f"`{where}` is the text {given!r}; write {_PLAIN[item['type']]}{_unit_hint(field, 0)}"
        else:
            yield f"`{where}`: {item['msg']} (got {str(given)[:60]!r})"
