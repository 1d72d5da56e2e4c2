"""What the installed engine accepts, with our own knowledge laid over it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.engine.config import Scalar
from infra.engine.errors import CatalogueMismatch, UnknownKnob

OVERLAY = Path(__file__).parent / "knobs.yaml"

Kind = Literal["bool", "int", "float", "choice", "str", "json"]
KnobClass = Literal["numeric", "choice", "structural"]

# Set by the launcher, never by a configuration.
RESERVED: frozenset[str] = frozenset(
    {
        "model",
        "tokenizer",
        "host",
        "port",
        "uds",
        "served_model_name",
        "api_key",
        "hf_token",
        "headless",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "middleware",
        "tool_parser_plugin",
        "reasoning_parser_plugin",
        "io_processor_plugin",
        "logits_processors",
        "worker_cls",
        "worker_extension_cls",
        "scheduler_cls",
        "trust_remote_code",
        "api_server_count",
        "download_dir",
        "log_config_file",
        "root_path",
    }
)


class Overlay(BaseModel):
    """What we know about a knob beyond its type; from knobs.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    meaning: str
    knob_class: KnobClass
    min: float | None = Field(default=None, description="rail: smallest value that may be tried")
    max: float | None = Field(default=None, description="rail: largest value that may be tried")
    step: float | None = Field(default=None, gt=0, description="values are multiples of it")
    choices: tuple[str, ...] | None = Field(default=None, description="of the engine's choices, those worth trying")
    unit: Literal["tokens", "requests", "bytes", "GiB", "ratio", ""] = ""
    couplings: tuple[str, ...] = Field(default=(), description="knobs that have to move with it")
    may_change_outputs: bool = False
    bottlenecks: tuple[str, ...] = Field(default=(), description="kinds of bottleneck that it touches")


class Knob(BaseModel):
    """One argument of the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Kind
    choices: tuple[str, ...] | None = None
    default: Any = None
    optional: bool = Field(description="not passing it leaves the value to the engine")
    multiple: bool = Field(default=False, description="takes several values, separated by blanks")
    human_readable: bool = Field(default=False, description="the engine itself reads 4k as 4,000 and 4K as 4,096")
    flag: str
    negative_flag: str | None = None
    help: str = ""
    overlay: Overlay | None = None

    @property
    def may_change_outputs(self) -> bool:
        """Whether a change needs the correctness comparison; unknown knobs do."""
        return self.overlay is None or self.overlay.may_change_outputs


class Catalogue(BaseModel):
    """All arguments of one engine version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    version: str
    knobs: dict[str, Knob]
    removed: dict[str, str] = Field(default_factory=dict, description="name → since when, or what replaced it")

    @property
    def engine_build(self) -> str:
        """The value of `ServingConfig.engine_build` for this engine."""
        return f"{self.engine} {self.version}"

    def knob(self, name: str) -> Knob:
        """The knob of that name.

        Raises:
            UnknownKnob: names near matches, or that this version removed it.
        """
        found = self.knobs.get(name)
        if found is None:
            raise UnknownKnob(self.why_unknown(name))
        return found

    def why_unknown(self, name: str) -> str:
        """One sentence on a name that this engine does not have."""
        if name in self.removed:
            return f"{name} was removed in this engine version ({self.engine_build}): {self.removed[name]}"
        near = difflib.get_close_matches(name.replace("-", "_"), self.knobs, n=3, cutoff=0.6)
        hint = f"; near: {', '.join(near)}" if near else ""
        return f"{self.engine_build} has no argument {name!r}{hint}"

    def tunable(self, bottlenecks: Iterable[str] | None = None) -> list[Knob]:
        """Knobs with an overlay, of the given kinds of bottleneck where any are named; sorted by name."""
        wanted = None if bottlenecks is None else set(bottlenecks)
        return [
            knob
            for _, knob in sorted(self.knobs.items())
            if knob.overlay is not None and (wanted is None or wanted & set(knob.overlay.bottlenecks))
        ]


def build_catalogue(dump: Mapping[str, Any], overlay: Mapping[str, Any]) -> Catalogue:
    """The catalogue of a dump (scripts/dump_knobs.py) and an overlay (knobs.yaml's content).

    Raises:
        CatalogueMismatch: the overlay names a knob that this engine does not have, or either is malformed.
    """
    try:
        notes = {name: Overlay.model_validate(note) for name, note in (overlay.get("knobs") or {}).items()}
        knobs = {item["name"]: Knob.model_validate(item) for item in dump["knobs"]}
        catalogue = Catalogue(
            engine=dump["engine"], version=dump["version"], knobs=knobs, removed=overlay.get("removed") or {}
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise CatalogueMismatch(f"the knob dump or knobs.yaml is malformed: {error}") from None
    if missing := [name for name in notes if name not in knobs]:
        raise CatalogueMismatch(
            f"knobs.yaml names {', '.join(missing)}, which {catalogue.engine_build} does not have",
            remedy="Move the name to `removed` in infra/engine/knobs.yaml, or install the engine that has it",
        )
    for name, note in notes.items():
        knob = knobs[name]
        if note.choices and knob.choices and (odd := set(note.choices) - set(knob.choices)):
            raise CatalogueMismatch(f"knobs.yaml: {name} has no choice {', '.join(sorted(odd))} in this engine")
        knobs[name] = knob.model_copy(update={"overlay": note})
    return catalogue.model_copy(update={"knobs": knobs})


def load_catalogue(dump_path: Path, overlay_path: Path = OVERLAY) -> Catalogue:
    """The catalogue from the files.

    Raises:
        CatalogueMismatch: a file is missing, unreadable or they disagree.
    """
    try:
        dump = json.loads(dump_path.read_text())
    except FileNotFoundError:
        raise CatalogueMismatch(f"no knob dump at {dump_path}", remedy="Set the engine up: `make engine`") from None
    except json.JSONDecodeError as error:
        raise CatalogueMismatch(f"{dump_path} is not JSON: {error}", remedy="Delete it and repeat the set-up") from None
    return build_catalogue(dump, yaml.safe_load(overlay_path.read_text()))


def default_of(knob: Knob) -> Scalar:
    """The engine's default as a scalar; None where the engine derives it or it is no scalar."""
    return knob.default if isinstance(knob.default, bool | int | float | str) else None
