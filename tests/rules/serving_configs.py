"""Serving configurations for tests of rules."""

from __future__ import annotations

from infra.engine.config import ModelIdentity, Scalar, ServingConfig

MODEL = ModelIdentity(name="m", weights_sha256="1" * 64, tokenizer_sha256="2" * 64)


def serving_config(**args: Scalar) -> ServingConfig:
    """A configuration with these arguments."""
    return ServingConfig(engine_build="e", model=MODEL, args=args)
