"""A demo cleans up after a killed one, and ends nothing that is not a demo's. No engine, no stack."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments import cli_stack
from deployments.demo.claim import unfinished
from deployments.demo.run import cleaned
from infra.engine.processes import OWNER_VARIABLE
from infra.errors import BadInput
from infra.stack.paths import StackPaths
from infra.stack.processes import MARKER

ROOT = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that says one line and sleeps."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(code: str = "print(1, flush=True)", **environment: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code) + "\nimport time; time.sleep(120)"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        begun.append(child)
        assert child.stdout is not None and child.stdout.readline()
        return child

    yield begin
    for child in begun:
        child.kill()
        child.wait()


def a_demo(state: Path) -> str:
    """A demo that has started an engine, and goes on."""
    return f"""
    import os, subprocess, sys
    from pathlib import Path
    from deployments.demo.run import cleaned
    block = cleaned(Path({str(state)!r}), keep=False)
    block.__enter__()
    env = {{**os.environ, {OWNER_VARIABLE!r}: "ratchet-production:{state}"}}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env=env, stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    """


def engine(state: Path) -> dict[str, str]:
    return {OWNER_VARIABLE: f"ratchet-production:{state}"}


def part_of_stack(state: Path) -> dict[str, str]:
    return {MARKER: StackPaths(state).marker}


def test_OR5_a_second_demo_in_the_same_folder_is_refused_and_leaves_the_first_alone(
    tmp_path: Path, start: Start
) -> None:
    first = start(a_demo(tmp_path))
    with pytest.raises(BadInput, match=rf"pid {first.pid}\).*Wait.*RATCHET_STATE="), cleaned(tmp_path, keep=False):
        pass
    assert first.poll() is None
    assert unfinished(tmp_path).exists()


def test_OR1_what_a_killed_demo_left_is_ended_by_the_next_one(tmp_path: Path, start: Start) -> None:
    first = start(a_demo(tmp_path))
    part = start(**part_of_stack(tmp_path))
    left = start(**engine(tmp_path))
    first.kill()
    first.wait()
    with cleaned(tmp_path, keep=False):
        assert left.wait(timeout=10) != 0
        assert part.poll() is None  # a stack that answers is used again
    assert part.wait(timeout=10) != 0
    assert not unfinished(tmp_path).exists()


@pytest.mark.parametrize("of", [engine, part_of_stack])
def test_OR5_what_no_demo_started_is_never_ended(
    tmp_path: Path, start: Start, of: Callable[[Path], dict[str, str]]
) -> None:
    by_hand = start(**of(tmp_path))
    with (
        pytest.raises(BadInput, match=rf"pid {by_hand.pid}\).*ratchet stack down.*RATCHET_STATE="),
        cleaned(tmp_path, keep=False),
    ):
        pass
    assert by_hand.poll() is None
    assert not unfinished(tmp_path).exists()


def test_a_kept_stack_and_an_interrupted_demo_leave_no_claim(tmp_path: Path) -> None:
    with cleaned(tmp_path, keep=True):
        pass
    assert not unfinished(tmp_path).exists()
    with pytest.raises(KeyboardInterrupt), cleaned(tmp_path, keep=False):
        raise KeyboardInterrupt
    assert not unfinished(tmp_path).exists()


@pytest.mark.parametrize("command", [cli_stack.up, cli_stack.down])
def test_a_person_who_uses_the_stack_s_commands_takes_it_over(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]
) -> None:
    first = start(a_demo(tmp_path))
    first.kill()
    first.wait()
    assert unfinished(tmp_path).exists()
    monkeypatch.setattr(cli_stack, "state_dir", lambda: tmp_path)
    monkeypatch.setattr(cli_stack, "stack_up", lambda *_, **__: None)
    monkeypatch.setattr(cli_stack, "_show", lambda _: None)
    command()
    assert not unfinished(tmp_path).exists()
    cli_stack.down()
