"""Files that are replaced whole or not at all, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra.errors import RatchetError


def replace_file(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write `data` to `path` through a rename: a reader sees the old file or the new one.

    Durable on return (the file and its folder are flushed). The temporary file lies in the same folder.
    """
    raw = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class LockHeld(RatchetError):
    """Another process holds the file lock and did not give it up in time."""


@contextmanager
def file_lock(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel gives it up when the holder dies.

    Raises:
        LockHeld: the lock was not free within `wait_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockHeld(
                        f"{path} is locked by another process (waited {wait_s:g} s)",
                        remedy="Wait until the other `ratchet stack` command has ended, then repeat",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
