"""How every setting is read: what is missing or wrong is named by its environment variable, with the remedy."""

from __future__ import annotations

import difflib
import os
import re
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from infra.errors import BadInput


class EnvironmentSettings(BaseSettings):
    """Base of all settings; `remedy` says where a person gets them from.

    Raises:
        BadInput: a variable is missing, wrong, or no setting (a misspelt one would leave a default in force). Each is
            named with its fault, never with its value, which may be a key.
    """

    remedy: ClassVar[str] = '`ratchet stack up` starts the embedded stack, `eval "$(ratchet stack env)"` sets its names'

    def __init__(self, **given: Any) -> None:
        if strange := _no_settings(type(self)):
            raise BadInput("; ".join(strange), remedy="Correct the name or unset it; docs/settings.md lists all")
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise BadInput("; ".join(_faults(type(self), error)), remedy=self.remedy) from None
        except SettingsError as error:
            # Raised before validation, for a list that is no JSON; only its text holds the field's name.
            field = re.search(r'field "(\w+)"', str(error))
            name = variable_of(type(self), field[1] if field else "")
            raise BadInput(
                f"setting {name} is wrong: {error.__cause__ or error}", remedy="A list is JSON: [0,1]"
            ) from None


def variable_of(kind: type[EnvironmentSettings], field: str) -> str:
    """The environment variable that a field is read from."""
    return f"{kind.model_config.get('env_prefix', '')}{field.upper()}"


def _no_settings(kind: type[EnvironmentSettings]) -> list[str]:
    prefix = kind.model_config.get("env_prefix", "")
    known = {variable_of(kind, field) for field in kind.model_fields}
    said = []
    for name in sorted(os.environ):
        if name.upper().startswith(prefix) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            said.append(f"{name} is no setting{f', {near[0]} is' if near else ''}")
    return said


def _faults(kind: type[EnvironmentSettings], error: ValidationError) -> list[str]:
    said = []
    for fault in error.errors():
        name = str(fault["loc"][0]) if fault["loc"] else ""
        if fault["type"] == "missing":
            meaning = kind.model_fields[name].description
            said.append(f"setting {variable_of(kind, name)} is missing{f' ({meaning})' if meaning else ''}")
        else:
            said.append(f"setting {variable_of(kind, name)} is wrong: {fault['msg']}")
    return said
