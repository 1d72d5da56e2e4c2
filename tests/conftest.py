"""Session fixtures: one real stack (object store, Prometheus, Envoy) for all tests that only use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.stack.control import open_stack_store, stack_down, stack_up
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.stack.records import StackAddresses
from infra.store import ObjectStore


@dataclass(frozen=True)
class LocalStack:
    """A running stack. Tests that kill its parts start one of their own."""

    state_dir: Path

    @property
    def paths(self) -> StackPaths:
        return StackPaths(self.state_dir)

    @property
    def addresses(self) -> StackAddresses:
        return stack_addresses(self.paths)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """S3, Prometheus and Envoy in a temporary folder; no Prefect, no engine."""
    state_dir = tmp_path_factory.mktemp("stack")
    try:
        stack_up(state_dir, prefect=False)
        yield LocalStack(state_dir)
    finally:
        stack_down(state_dir)


@pytest.fixture(scope="session")
def store(stack: LocalStack) -> ObjectStore:
    """The session stack's object store as admin; keep to a prefix of your own."""
    return open_stack_store(stack.state_dir)
