"""Everything that decides how an engine serves, and its canonical hash."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None

# Environment that changes how the engine serves. Whatever else is set never reaches it through a configuration.
ALLOWED_ENV: frozenset[str] = frozenset(
    {
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "VLLM_CPU_SGL_KERNEL",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "KMP_BLOCKTIME",
        "MKL_NUM_THREADS",
        "MALLOC_ARENA_MAX",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_P2P_DISABLE",
        "PYTORCH_CUDA_ALLOC_CONF",
    }
)


def canonical(value: Scalar) -> Scalar:
    """The one form of a value: a float without a fraction is its integer; NaN and infinity are refused."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return int(value) if value.is_integer() else value
    return value


def _arguments(args: dict[str, Scalar]) -> dict[str, Scalar]:
    # None means "not passed", which is what an absent key means: one form for it.
    return {name: canonical(args[name]) for name in sorted(args) if args[name] is not None}


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if name not in ALLOWED_ENV:
            raise ValueError(f"environment variable {name} is not one that may be part of a configuration")
    return dict(sorted(env.items()))


class ModelIdentity(BaseModel):
    """Which weights and which tokenizer; the same wherever the files lie."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    path: str | None = Field(default=None, description="folder on this machine; not part of the identity")
    weights_sha256: str
    tokenizer_sha256: str


class ServingConfig(BaseModel):
    """What is measured, approved and deployed; compare by `config_hash()`.

    args maps an engine argument's name (max_num_seqs) to its value; an argument that is absent or None is
    not passed, so the engine's own default holds. Model, host, port and served names are not arguments here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_build: str = Field(description="distribution and version: vllm-cpu 0.32.0")
    model: ModelIdentity
    args: Annotated[dict[str, Scalar], AfterValidator(_arguments)] = Field(default_factory=dict)
    env: Annotated[dict[str, str], AfterValidator(_environment)] = Field(default_factory=dict)

    def canonical_json(self) -> str:
        """What is hashed: sorted keys, no blanks, without the model's path."""
        return json.dumps(
            {
                "engine_build": self.engine_build,
                "model": self.model.model_dump(exclude={"path"}),
                "args": _arguments(self.args),
                "env": self.env,
            },
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        )

    def config_hash(self) -> str:
        """sha256 of `canonical_json()`, 64 hex digits."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def with_arg(self, name: str, value: Scalar) -> Self:
        """The same configuration with one argument set, or not passed where `value` is None."""
        return type(self)(
            engine_build=self.engine_build, model=self.model, args={**self.args, name: value}, env=self.env
        )

    def with_args(self, changes: dict[str, Scalar]) -> Self:
        """The same configuration with several arguments set."""
        result = self
        for name, value in changes.items():
            result = result.with_arg(name, value)
        return result

    def diff(self, other: ServingConfig) -> dict[str, tuple[Scalar, Scalar]]:
        """What differs, as name → (here, there); env as env.NAME, model as model.FIELD. Empty when equal."""
        here, there = _flat(self), _flat(other)
        return {
            name: (here.get(name), there.get(name))
            for name in sorted({*here, *there})
            if here.get(name) != there.get(name) or type(here.get(name)) is not type(there.get(name))
        }


def _flat(config: ServingConfig) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {"engine_build": config.engine_build}
    flat |= {f"model.{k}": v for k, v in config.model.model_dump(exclude={"path"}).items()}
    flat |= {f"env.{k}": v for k, v in config.env.items()}
    flat |= _arguments(config.args)
    return flat
