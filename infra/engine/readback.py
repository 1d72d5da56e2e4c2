"""What a running engine says it serves with, compared with what was asked for (case EN3)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from infra.engine.catalogue import Catalogue
from infra.engine.config import Scalar, ServingConfig
from infra.engine.errors import EngineFailed
from infra.engine.launch import Engine, request
from infra.engine.values import parse_value

# Arguments whose name differs from that of the field which they set; others are looked for under their own.
FIELDS: Mapping[str, str] = {
    "scheduling_policy": "scheduler_config.policy",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "attention_backend": "attention_config.backend",
    "numa_bind": "parallel_config.numa_bind",
    "cudagraph_capture_sizes": "compilation_config.cudagraph_capture_sizes",
    "max_cudagraph_capture_size": "compilation_config.max_cudagraph_capture_size",
}
SECTIONS = (
    "model_config",
    "cache_config",
    "scheduler_config",
    "parallel_config",
    "load_config",
    "observability_config",
    "compilation_config",
    "attention_config",
)
ARGUMENTS_LINE = re.compile(r"non-default args: (\{.*\})")


class Difference(NamedTuple):
    """One argument that the engine does not serve with as asked."""

    name: str
    asked: Scalar
    found: Scalar
    kind: Literal["differs", "not_taken", "unconfirmed"]


def parsed_arguments(log_text: str) -> dict[str, Any]:
    """What the engine's command line parser took, from its log line "non-default args"; last one counts.

    Raises:
        EngineFailed: there is no such line.
    """
    lines = ARGUMENTS_LINE.findall(log_text)
    if not lines:
        raise EngineFailed("the engine's log has no line 'non-default args'")
    try:
        found = ast.literal_eval(lines[-1])
    except (ValueError, SyntaxError):
        # Dataclass values have no literal form; the plain ones before and after them do.
        pairs = re.findall(r"'(\w+)': ('[^']*'|-?[\d.]+(?:e-?\d+)?|True|False|None)(?=[,}])", lines[-1])
        found = {name: ast.literal_eval(text) for name, text in pairs}
    return dict(found)


def effective_config(engine: Engine, *, timeout_s: float = 60.0) -> dict[str, Any]:
    """The engine's resolved configuration by section, from /server_info; it costs the engine some CPU.

    Raises:
        EngineFailed: the engine did not tell.
    """
    try:
        answer = request(f"{engine.root_url}/server_info?config_format=json", timeout_s=timeout_s)
        return dict(answer["vllm_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineFailed(f"engine {engine.engine_id} did not tell its configuration: {error}") from None


def differences(
    config: ServingConfig,
    catalogue: Catalogue,
    *,
    parsed: Mapping[str, Any],
    effective: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """Arguments that the engine does not serve with as they were asked for; empty when all hold.

    Args:
        config: what was asked for.
        catalogue: of the installed engine.
        parsed: from `parsed_arguments`; an argument equal to the engine's default is not listed there.
        effective: from `effective_config`; without it a value that was overridden later is not seen.
    """
    found: list[Difference] = []
    for name, raw in config.args.items():
        knob = catalogue.knob(name)
        asked = parse_value(knob, raw)
        if asked is None:
            continue
        taken = parsed.get(name, knob.default)
        if not same(asked, taken):
            found.append(Difference(name, asked, _scalar(taken), "not_taken"))
            continue
        if effective is None or asked == "auto":
            continue
        known, value = _lookup(effective, name)
        if not known:
            found.append(Difference(name, asked, None, "unconfirmed"))
        elif not same(asked, value):
            found.append(Difference(name, asked, _scalar(value), "differs"))
    return found


def read_back(
    engine: Engine, config: ServingConfig, catalogue: Catalogue, *, resolved: bool = True
) -> list[Difference]:
    """Ask a ready engine what it serves with and compare; empty when all arguments hold.

    With `resolved` the engine also tells what became of the arguments, which costs it some seconds of CPU:
    do it before the warm-up, never during a measurement.

    Raises:
        EngineFailed: it did not tell.
    """
    return differences(
        config,
        catalogue,
        parsed=parsed_arguments(engine.log_text()),
        effective=effective_config(engine) if resolved else None,
    )


def _lookup(effective: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    if path := FIELDS.get(name):
        section, field = path.split(".")
        held = effective.get(section)
        return isinstance(held, Mapping) and field in held, held.get(field) if isinstance(held, Mapping) else None
    for section in SECTIONS:
        held = effective.get(section)
        if isinstance(held, Mapping) and name in held:
            return True, held[name]
    return (True, effective[name]) if name in effective else (False, None)


def same(asked: Scalar, found: Any) -> bool:
    """Whether two forms mean one value: 1 and 1.0, "float32" and "torch.float32", JSON and its object."""
    if isinstance(asked, bool) or isinstance(found, bool):
        return asked is found
    if isinstance(asked, int | float) and isinstance(found, int | float):
        return float(asked) == float(found)
    if isinstance(found, Mapping | list | tuple):
        text = json.dumps(found, sort_keys=True, separators=(",", ":"), default=str)
        return str(asked) in (text, " ".join(map(str, found)))
    return str(asked).lower() == str(found).lower().removeprefix("torch.")


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
