"""Files that are either whole or absent: written beside their place and renamed into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from infra.errors import os_fault


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Parent folders are made. Raises BadInput when the place cannot be written or its disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise os_fault(error, f"cannot write {path}") from error
