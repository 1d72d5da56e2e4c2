"""Real vLLM behind a real Envoy: a replica is replaced under load without losing a request."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import requests

from infra.engine import processes
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.embedded import cpu_dtype, embedded_model
from infra.engine.environment import home
from infra.settings.production import ProductionSettings
from infra.traffic.fleet import FleetError, LocalFleet, retire_everything
from infra.traffic.switch import EnvoySwitch
from tests.conftest import LocalStack

HOME = home()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.stack,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not HOME.is_complete(), reason="the engine's environment is not set up (make engine)"),
]


@pytest.fixture
def config() -> ServingConfig:
    return ServingConfig(
        engine_build=load_catalogue(HOME.knobs).engine_build,
        model=embedded_model(HOME),
        args={
            "dtype": cpu_dtype(),
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 2,
            "block_size": 32,
            "kv_cache_memory_bytes": 268435456,
        },
        env={
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
    )


def test_R5_stable_is_reconfigured_under_load_without_a_lost_request(stack: LocalStack, config: ServingConfig) -> None:
    fleet = LocalFleet(ProductionSettings(state_dir=stack.state_dir, stable_cores=(0, 1), canary_cores=(0, 1)))
    EnvoySwitch.of_stack(stack.state_dir).set_weight(0.0)
    answers: list[int] = []
    over = threading.Event()

    def users() -> None:
        body = {"model": config.model.name, "prompt": "1 2 3", "max_tokens": 4}
        while not over.is_set():
            answer = requests.post(f"{stack.addresses.envoy}/v1/completions", json=body, timeout=120)
            answers.append(answer.status_code)

    try:
        first = fleet.ensure("stable", config)
        assert fleet.ensure("stable", config) == first  # nothing happens twice
        thread = threading.Thread(target=users)
        thread.start()
        second = fleet.ensure("stable", config.with_arg("max_num_seqs", 4))
        over.set()
        thread.join(timeout=120)
        assert second.port != first.port
        assert not processes.of_engine(first.engine_id, first.pid)
        assert len(answers) > 3
        assert set(answers) == {200}
        # A configuration that the engine cannot serve leaves the one that serves alone.
        with pytest.raises(FleetError, match="cannot serve this configuration"):
            fleet.ensure("stable", config.with_arg("kv_cache_memory_bytes", 4096))
        assert fleet.serves("stable", config.with_arg("max_num_seqs", 4))
    finally:
        over.set()
        retire_everything(Path(stack.state_dir))
        fleet.retire("stable")
