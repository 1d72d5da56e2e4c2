"""What the command line says about itself, and what a person can do with what it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from deployments import cli, ledger
from infra.errors import BadInput
from tasks.shared.records import LedgerEntry, Target


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every group and command with its path; they are of the library's own classes, which it does not export."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_an_example_and_every_option_a_meaning(path: tuple[str, ...]) -> None:
    command = ALL[path]
    said = f"{command.help} {command.epilog}"
    assert re.search(r"Example: .*\bratchet \w", said), "no example"
    for parameter in command.params:
        meaning = getattr(parameter, "help", None)
        assert meaning, f"{' '.join(path)}: {parameter.name} is not explained"


def test_help_is_whole_in_a_narrow_terminal() -> None:
    said = CliRunner().invoke(cli.app, ["sample", "--help"], env={"COLUMNS": "60", "TERMINAL_WIDTH": "60"}).stdout
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert "--medium-below" in said
    assert "the conversations that follow" in " ".join(said.split())


def entry(name: str) -> LedgerEntry:
    return LedgerEntry(entry_id=name, at_s=1.0, target=Target(model="m", pool="p"), campaign="c", kind="trial")


def test_an_entry_is_shown_by_its_whole_id_or_by_a_beginning_that_no_other_has(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [("then", entry(name)) for name in ("c-refused-1", "c-refused-10", "c-3f9c2a")]
    monkeypatch.setattr(ledger, "all_entries", lambda: kept)
    assert '"c-refused-1"' in ledger.show("c-refused-1")
    assert '"c-3f9c2a"' in ledger.show("c-3")
    with pytest.raises(BadInput, match="names 2 entries: c-refused-1, c-refused-10"):
        ledger.show("c-ref")
    with pytest.raises(BadInput, match="'x' names 0 entries\\. `ratchet ledger list`"):
        ledger.show("x")
