"""A configuration as the engine's command line and environment; pure."""

from __future__ import annotations

from infra.engine.catalogue import RESERVED, Catalogue, Knob
from infra.engine.config import Scalar, ServingConfig
from infra.engine.errors import UnreadableValue
from infra.engine.values import parse_value


def render_argv(config: ServingConfig, catalogue: Catalogue) -> list[str]:
    """The engine's arguments, sorted by name, without model, host, port and names.

    Three states for a switch: None is not passed, True is `--flag`, False is `--no-flag`.

    Raises:
        UnknownKnob: an argument that this engine does not have.
        UnreadableValue: a value that is none, or False for a switch that cannot be switched off.
    """
    argv: list[str] = []
    for name in sorted(config.args):
        knob = catalogue.knob(name)
        if name in RESERVED:
            raise UnreadableValue(f"{name} is set by the launcher and cannot be part of a configuration")
        value = parse_value(knob, config.args[name])
        if value is not None:
            argv += _argument(knob, value)
    return argv


def _argument(knob: Knob, value: Scalar) -> list[str]:
    if knob.kind == "bool":
        if value is True:
            return [knob.flag]
        if knob.negative_flag:
            return [knob.negative_flag]
        if knob.default is False:
            return []
        raise UnreadableValue(f"{knob.name} cannot be switched off in this engine", remedy="Leave it out")
    if knob.multiple:
        return [knob.flag, *str(value).split()]
    # One word, so that a negative number or a text that starts with a dash is not taken for a flag.
    return [f"{knob.flag}={_text(value)}"]


def _text(value: Scalar) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def render_env(config: ServingConfig) -> dict[str, str]:
    """The allow-listed environment of the configuration."""
    return dict(config.env)
