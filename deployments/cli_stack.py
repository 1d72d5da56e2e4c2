"""`ratchet stack`: the embedded S3, Prometheus, Envoy and Prefect server."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.table import Table

from deployments.demo.claim import unfinished
from deployments.environment import embedded_settings, state_dir
from deployments.terminal import console
from infra.stack.control import stack_down, stack_status, stack_up
from infra.stack.records import StackStatus
from infra.traffic.fleet import retire_everything

app = typer.Typer(
    no_args_is_help=True, help="The embedded stack: S3, Prometheus, Envoy, Prefect server. Example: ratchet stack up"
)
out = console()


def _show(status: StackStatus) -> None:
    table = Table("part", "up", "address", "since (UTC)", "restarts", "what is wrong", box=None)
    table.columns[2].no_wrap = True
    for part in (status.supervisor, *status.parts):
        since = part.since.strftime("%m-%d %H:%M:%S") if part.since else ""
        table.add_row(part.name, "yes" if part.up else "NO", part.address, since, str(part.restarts), part.wrong)
    out.print(table)


@app.command()
def up(prefect: Annotated[bool, typer.Option(help="with the Prefect server")] = True) -> None:
    """Start what is not running and wait until all of it answers. Example: ratchet stack up"""
    _show(stack_up(state_dir(), prefect=prefect))
    unfinished(state_dir()).unlink(missing_ok=True)


@app.command()
def down() -> None:
    """End every process of the stack and its replicas; data stays. Example: ratchet stack down"""
    retire_everything(state_dir())
    stack_down(state_dir())
    unfinished(state_dir()).unlink(missing_ok=True)
    out.print("down; no process is left, data stays in " + str(state_dir()))


@app.command()
def status() -> None:
    """What runs, where, since when, what is wrong; exit code 3 where a part is not up. Example: ratchet stack status"""
    found = stack_status(state_dir())
    _show(found)
    raise typer.Exit(0 if found.ok else 3)


@app.command()
def env() -> None:
    """The sandbox's settings as shell lines. Example: eval "$(ratchet stack env)" """
    for name, value in embedded_settings(state_dir(), "sandbox").items():
        typer.echo(f"export {name}={shlex.quote(value)}")
