"""Real vLLM, replayed against and read through a real Prometheus: client and server count the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from infra.bench.measure import Served, counters
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.embedded import cpu_dtype, embedded_model
from infra.engine.environment import home
from infra.engine.launch import start_engine, stop, wait_ready
from infra.metrics.reader import MetricsReader, Selector
from infra.metrics.window import MetricsWindow
from infra.replay.process import run_replay_process
from infra.replay.records import ReplayOptions
from infra.sampling.sample import save_sample
from infra.stack.ports import port_is_free
from infra.stack.targets import set_targets
from infra.traffic.shape import TrafficShape, plan_window, planned_sample
from tests.conftest import LocalStack

HOME = home()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.stack,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HOME.is_complete(), reason="the engine's environment is not set up (make engine)"),
]


def test_B1_a_replay_against_real_vllm_is_what_prometheus_counts(stack: LocalStack, tmp_path: Path) -> None:
    catalogue = load_catalogue(HOME.knobs)
    config = ServingConfig(
        engine_build=catalogue.engine_build,
        model=embedded_model(HOME),
        args={
            "dtype": cpu_dtype(),
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "block_size": 32,
            "kv_cache_memory_bytes": 268435456,
            "enable_prefix_caching": True,
        },
        env={"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )
    shape = TrafficShape(
        system_tokens=(96, 104),
        short_below_tokens=150,
        medium_below_tokens=216,
        longest_prompt_tokens=350,
        shortest_turn_tokens=8,
        peak_share=0.0,
        drain_share=0.0,
        recorded_rate_per_s=1.0,
    )
    plan = plan_window(shape, 10.0, seed=3, phase=1)
    sample = tmp_path / "sample.parquet"
    save_sample(planned_sample(plan, shape.strata), sample)
    port = 18700
    while not port_is_free(port):
        port += 1
    engine = start_engine(
        config,
        catalogue=catalogue,
        engine_python=HOME.python,
        model_path=HOME.model,
        port=port,
        cores=(0,),
        log_path=tmp_path / "engine.log",
        owner=f"live-{os.getpid()}",
    )
    try:
        wait_ready(engine, 300)
        set_targets(stack.paths, "engines", [f"127.0.0.1:{port}"], {"role": "sandbox"})
        time.sleep(8)  # Prometheus takes a new target over within about 6 s
        start_s = time.time()
        served = Served(root_url=engine.root_url, model=engine.nonce, pid=engine.pid)
        before = counters(served)
        done = run_replay_process(
            sample, f"{served.root_url}/v1", served.model, tmp_path / "out", cores=(1,), options=ReplayOptions()
        )
        counted = counters(served).since(before)
        time.sleep(2)
        window = MetricsWindow(
            MetricsReader(stack.addresses.prometheus, 10.0), Selector.role("sandbox"), start_s, time.time()
        )
        summary = done.summary
        assert summary.ok == summary.requests == len(plan)
        assert window.increase("generation_tokens").value == summary.output_tokens
        assert window.increase("prompt_tokens").value == summary.prompt_tokens
        assert window.increase("request_success").value == len(plan)
        assert sum(p.output_tokens for p in plan) == summary.output_tokens  # speed runs force the lengths
        assert counted.prefix_hits is not None and counted.prefix_hits > 0  # shared system prompts, cold cache
        assert window.restarts().value == 0
    finally:
        set_targets(stack.paths, "engines", [], {"role": "sandbox"})
        stop(engine)
