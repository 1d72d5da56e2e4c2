"""The identity of the benchmark itself (spec V2)."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import infra.sampling.sample as sample_module


@lru_cache(maxsize=1)
def replay_code_hash() -> str:
    """sha256 over the names and bytes of this package's sources and of the module that defines a sample."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for file in [*sorted(folder.glob("*.py")), Path(str(sample_module.__file__))]:
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
