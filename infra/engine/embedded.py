"""The embedded model and what this machine's CPU can serve it with."""

from __future__ import annotations

import json
from pathlib import Path

from infra.engine.config import ModelIdentity
from infra.engine.environment import MODEL_NAME, EngineHome
from infra.errors import BadInput

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def embedded_model(target: EngineHome) -> ModelIdentity:
    """Name and hashes of the converted model.

    Raises:
        BadInput: it was not converted yet.
    """
    try:
        found = json.loads((target.model / "identity.json").read_text())
    except FileNotFoundError:
        raise BadInput(f"no model in {target.model}", remedy="Run `make engine`") from None
    return ModelIdentity(
        name=MODEL_NAME,
        path=str(target.model),
        weights_sha256=found["weights_sha256"],
        tokenizer_sha256=found["tokenizer_sha256"],
    )


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """`bfloat16` where the CPU multiplies it, else `float32`.

    Without such instructions the matrix products of bfloat16 fall back to a path that reached 35 prompt tokens
    a second where float32 reached 230 (135M model, one AVX2 core).
    """
    try:
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:
        flags = ""
    return "bfloat16" if BF16_FLAGS & set(flags.split()) else "float32"
