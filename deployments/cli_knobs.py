"""`ratchet knobs`: is a setting legal for the installed engine, which rule forbids it, what is its command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer
from pydantic import ValidationError

from infra.engine.catalogue import Catalogue, load_catalogue
from infra.engine.config import ModelIdentity, ServingConfig
from infra.engine.environment import home
from infra.engine.legal import check as check_legal
from infra.engine.render import render_argv
from infra.engine.values import parse_value
from infra.errors import BadInput

app = typer.Typer(
    no_args_is_help=True,
    help="Settings of the installed engine: legal or not, and as a command line. "
    "Example: ratchet knobs check --set max_num_seqs=256",
)
BaseOption = Annotated[Optional[Path], typer.Option("--base", help="ServingConfig as JSON to start from")]  # noqa: UP045
SetOption = Annotated[Optional[list[str]], typer.Option("--set", help="NAME=VALUE; may be repeated")]  # noqa: UP045


def _config(base: Path | None, settings: list[str], catalogue: Catalogue) -> ServingConfig:
    if base is None:
        unknown = ModelIdentity(name="any", weights_sha256="", tokenizer_sha256="")
        config = ServingConfig(engine_build=catalogue.engine_build, model=unknown)
    else:
        try:
            raw = json.loads(base.read_text())
            if isinstance(raw, dict) and "engine_build" not in raw:
                unknown = ModelIdentity(name="any", weights_sha256="", tokenizer_sha256="")
                config = ServingConfig(engine_build=catalogue.engine_build, model=unknown, args=raw)
            else:
                config = ServingConfig.model_validate(raw)
        except FileNotFoundError:
            raise BadInput(f"{base} does not exist") from None
        except (json.JSONDecodeError, ValidationError) as error:
            raise BadInput(f"{base} is no serving configuration: {error}") from None
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign:
            raise BadInput(f"--set {setting} has no '='", remedy="--set max_num_seqs=256")
        knob = catalogue.knob(name.strip().lstrip("-").replace("-", "_"))
        config = config.with_arg(knob.name, parse_value(knob, value))
    return config


@app.command()
def build() -> None:
    """The installed engine, as `engine_build` of a configuration names it. Example: ratchet knobs build"""
    typer.echo(load_catalogue(home().knobs).engine_build)


@app.command()
def check(base: BaseOption = None, settings: SetOption = None) -> None:
    """Is it legal, and which rule forbids it.

    Example: ratchet knobs check --set max_num_seqs=4096 --set max_num_batched_tokens=2048
    """
    catalogue = load_catalogue(home().knobs)
    found = check_legal(_config(base, settings or [], catalogue), catalogue)
    for violation in found:
        typer.echo(f"{violation.rule}: {violation.message}")
    if not found:
        typer.echo("legal")
    raise typer.Exit(1 if found else 0)


@app.command()
def render(base: BaseOption = None, settings: SetOption = None) -> None:
    """The engine's arguments. Example: ratchet knobs render --set enable_prefix_caching=false"""
    catalogue = load_catalogue(home().knobs)
    typer.echo(shlex.join(render_argv(_config(base, settings or [], catalogue), catalogue)))


@app.command()
def parse(
    name: Annotated[str, typer.Argument(help="knob, as vLLM's EngineArgs has it: max_num_seqs")],
    value: Annotated[str, typer.Argument(help="as on a command line: 256, 0.9, true, auto")],
) -> None:
    """One value, normalised, or why not. Example: ratchet knobs parse max_num_seqs 256.0"""
    typer.echo(json.dumps(parse_value(load_catalogue(home().knobs).knob(name), value)))
