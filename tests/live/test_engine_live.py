"""Real vLLM: one start by fork and, when asked for, one cold one, both ending without leftovers."""

from __future__ import annotations

import json
import os
import socket
import urllib.request

import psutil
import pytest

from infra.bench.measure import Served
from infra.bench.profile import NOT_PERMITTED, profile_engine
from infra.engine import launch
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.embedded import cpu_dtype, embedded_model
from infra.engine.environment import home
from infra.engine.legal import check
from infra.engine.prefork import PreforkServer
from infra.engine.readback import Difference, read_back
from infra.metrics.aliases import FAMILIES, resolve
from infra.sampling.sample import SampleEntry, make_sample, save_sample
from infra.stack.ports import port_is_free

HOME = home()
OWNER = f"live-{os.getpid()}"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HOME.is_complete(), reason="the engine's environment is not set up (make engine)"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def catalogue():
    return load_catalogue(HOME.knobs)


@pytest.fixture(scope="module")
def config(catalogue):
    return ServingConfig(
        engine_build=catalogue.engine_build,
        model=embedded_model(HOME),
        args={
            "dtype": cpu_dtype(),
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "kv_cache_memory_bytes": 268435456,
            "enable_prefix_caching": False,
        },
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )


@pytest.fixture(scope="module")
def prefork(config, tmp_path_factory):
    with PreforkServer.start(
        engine_python=HOME.python,
        config=config,
        base_env=launch.base_env(),
        owner=OWNER,
        log_path=tmp_path_factory.mktemp("prefork") / "prefork.log",
    ) as server:
        yield server
    assert launch.sweep_orphans(OWNER) == []


def chat(engine: launch.Engine, text: str, max_tokens: int) -> dict:
    body = {
        "model": engine.model_name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    return launch.request(f"{engine.base_url}/chat/completions", body, timeout_s=120)


def serve_once(engine: launch.Engine, config, catalogue) -> str:
    """Ready, one answer, what it serves with, cache reset, stop; returns the answer."""
    try:
        launch.wait_ready(engine, 300)
        answer = chat(engine, "What is two plus two?", 12)
        assert answer["usage"]["completion_tokens"] > 0
        assert read_back(engine, config, catalogue) == []
        launch.reset_prefix_cache(engine)
        assert launch.health(engine) is None
        assert launch.peak_rss_bytes(engine) > 256 << 20
        with urllib.request.urlopen(f"{engine.root_url}/metrics", timeout=30) as page:
            exposition = page.read().decode()
        assert f'vllm:num_requests_running{{engine="0",model_name="{engine.model_name}"}}' in exposition
        # MS2: every metric that the loop reads exists in the installed version, under one of its names.
        exported = {line.split("{")[0].split()[0] for line in exposition.splitlines() if line and line[0] != "#"}
        assert all(resolve(name, exported) for name in FAMILIES if name != "admission_rejections")
        assert "vllm:gpu_cache_usage_perc" not in exported
        pids = [p.pid for p in engine.members()]
        assert len(pids) >= 2
    finally:
        launch.stop(engine)
    assert engine.members() == []
    assert not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids)
    assert port_is_free(engine.port)
    return answer["choices"][0]["message"]["content"]


@pytest.fixture
def start(config, catalogue, prefork, tmp_path):
    def starter(changed=None, *, forked=True):
        return launch.start_engine(
            changed or config,
            catalogue=catalogue,
            engine_python=HOME.python,
            model_path=HOME.model,
            port=free_port(),
            cores=(min(os.sched_getaffinity(0)),),
            log_path=tmp_path / "engine.log",
            owner=OWNER,
            prefork=prefork if forked else None,
        )

    return starter


def test_EN4_a_forked_engine_serves_tells_its_configuration_and_leaves_nothing(start, config, catalogue):
    assert check(config, catalogue, model_max_len=8192) == []
    assert serve_once(start(), config, catalogue)


def test_EN1_what_slips_through_is_an_invalid_configuration(start, config):
    engine = start(config.with_args({"enable_chunked_prefill": False, "max_num_batched_tokens": 256}))
    try:
        with pytest.raises(launch.StartFailed) as failed:
            launch.wait_ready(engine, 120)
        assert failed.value.outcome.kind == "invalid_config"
        assert "smaller than max_model_len" in failed.value.outcome.detail + " ".join(failed.value.outcome.last_lines)
    finally:
        launch.stop(engine)


def test_EN3_an_argument_that_the_engine_turns_off_again_is_reported(start, config, catalogue):
    asked = config.with_arg("async_scheduling", True)
    engine = start(asked)
    try:
        launch.wait_ready(engine, 120)
        assert read_back(engine, asked, catalogue) == [Difference("async_scheduling", True, False, "differs")]
    finally:
        launch.stop(engine)


def test_L1_a_profile_of_a_loaded_engine_tells_its_cpu_side(start, tmp_path):
    entries = [
        SampleEntry(
            request_id=f"r{i}",
            arrival_s=i,
            prompt_tokens=100,
            output_tokens=40,
            messages=({"role": "user", "content": f"{i} " + "and so on " * 30},),
        )
        for i in range(16)
    ]
    save_sample(make_sample(entries), tmp_path / "sample.parquet")
    engine = start()
    try:
        launch.wait_ready(engine, 300)
        profile = profile_engine(
            Served(root_url=engine.root_url, model=engine.nonce, pid=engine.pid),
            tmp_path / "sample.parquet",
            tmp_path,
            concurrency=4,
            client_cores=(max(os.sched_getaffinity(0)),),
        )
        assert launch.health(engine) is None
        assert chat(engine, "Still there?", 4)["usage"]["completion_tokens"] > 0
    finally:
        launch.stop(engine)
    if profile.cpu_side.value is None:  # a machine that is busy with other things gives few samples
        assert profile.cpu_side.cause == NOT_PERMITTED or profile.cpu_side.cause.startswith("too few samples")
        pytest.skip(profile.cpu_side.cause)
    # On a CPU the model's own work is most of it.
    assert 0 <= profile.cpu_side.value < 0.5
    parts = (profile.tokenise, profile.schedule, profile.detokenise, profile.serve)
    assert sum(p.value for p in parts) == pytest.approx(profile.cpu_side.value)


@pytest.mark.skipif(not os.environ.get("RATCHET_TEST_COLD_START"), reason="takes a minute; RATCHET_TEST_COLD_START=1")
def test_V10_a_cold_engine_is_the_same_as_a_forked_one(start, config, catalogue):
    def observed(engine):
        try:
            launch.wait_ready(engine, 300)
            assert len(engine.members()) >= 2
            answer = chat(engine, "Write one sentence about a river.", 24)["choices"][0]["message"]["content"]
            info = launch.request(f"{engine.root_url}/server_info?config_format=json", timeout_s=60)
            return answer, json.dumps({k: v for k, v in info["vllm_config"].items() if k != "instance_id"})
        finally:
            launch.stop(engine)

    assert observed(start(forked=False)) == observed(start())


def test_EN4_forked_engines_of_a_dead_owner_are_swept(start):
    # Last in this file: the sweep ends the fork server as well.
    engine = start()
    launch.wait_ready(engine, 120)
    members = {p.pid for p in engine.members()}
    assert members < set(launch.sweep_orphans(OWNER))
    assert engine.members() == []
    assert port_is_free(engine.port)
