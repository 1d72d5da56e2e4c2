"""One measurement at a time on one machine: a lock next to the resource (case OR5).

The kernel gives a dead owner's lock back, so nothing has to be reclaimed by hand.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import RatchetError


class SandboxBusy(RatchetError):
    """Another campaign measures on this machine."""


@contextmanager
def sandbox_lock(path: Path) -> Iterator[None]:
    """Hold the sandbox; raises SandboxBusy at once when another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise SandboxBusy(
                f"the sandbox {path} is in use by {handle.read().strip() or 'another process'}",
                remedy="Wait for that campaign, or end it; two measurements on one machine measure each other",
            ) from None
        handle.truncate(0)
        handle.write(f"pid {os.getpid()}")
        handle.flush()
        yield
    finally:
        handle.close()
