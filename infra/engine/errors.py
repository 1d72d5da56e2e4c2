"""Faults of the engine's side that a person can act on."""

from __future__ import annotations

from infra.errors import BadInput, RatchetError


class UnknownKnob(BadInput):
    """The installed engine has no argument of this name."""


class UnreadableValue(BadInput):
    """A text is not a value of the knob: wrong kind, wrong unit, not one of the choices."""


class CatalogueMismatch(BadInput):
    """The overlay and the installed engine disagree, or the dump cannot be used."""


class EngineFailed(RatchetError):
    """The engine did not come up, did not answer or did not go away; carries the outcome."""


class StillRunning(RatchetError):
    """Processes of a stopped engine are left, or its port is still taken."""
