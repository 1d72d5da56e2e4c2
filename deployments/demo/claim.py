"""Whose state folder it is: one demo at a time, and never over what a person started there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from infra.errors import BadInput
from infra.stack.atomic import LockHeld, file_lock
from infra.stack.paths import StackPaths
from infra.stack.processes import marked
from infra.traffic.fleet import engines_of

OTHER_FOLDER = "another folder: RATCHET_STATE=/tmp/other make demo"


def unfinished(state: Path) -> Path:
    """Lies in the folder while what runs there is a demo's: from its start until all of it has been ended, or until a
    person takes the stack over with `ratchet stack up` or `down`."""
    return state / "demo.unfinished"


@contextmanager
def claimed(state: Path) -> Iterator[None]:
    """The folder is this demo's for the length of the block. The kernel gives a killed demo's lock back, and its mark
    stays: the next demo knows by it that what runs there may be ended.

    Raises:
        BadInput: another demo runs there, or a stack or engines that no demo started.
    """
    lock = state / "demo.lock"
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(lock, wait_s=0))
        except LockHeld:
            raise BadInput(
                f"a demo runs in {state} already (pid {lock.read_text() or 'unknown'})",
                remedy=f"Wait for its end, or use {OTHER_FOLDER}",
            ) from None
        lock.write_text(str(os.getpid()))
        if not unfinished(state).exists() and (pids := _running(state)):
            raise BadInput(
                f"in {state} runs what no demo started (pid {', '.join(map(str, pids[:5]))}), and a demo would end it",
                remedy=f"`ratchet stack down` ends it; or use {OTHER_FOLDER}",
            )
        unfinished(state).touch()
        yield


def _running(state: Path) -> list[int]:
    return sorted(p.pid for p in (*marked(StackPaths(state).marker), *engines_of(state)))
