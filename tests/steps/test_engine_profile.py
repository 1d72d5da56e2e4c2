"""What stands in the way of a profile becomes the cause of an unknown reading, never a fault."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.bench import profile
from infra.bench.measure import Served
from infra.sampling.sample import SampleEntry, make_sample, save_sample

CORE = min(os.sched_getaffinity(0))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    entries = [
        SampleEntry(
            request_id=f"r{i}",
            arrival_s=i,
            prompt_tokens=3,
            output_tokens=4,
            messages=({"role": "user", "content": "a"},),
        )
        for i in range(3)
    ]
    save_sample(make_sample(entries), tmp_path / "sample.parquet")
    return tmp_path / "sample.parquet"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr(profile, "cold_cache", lambda _: None)


@pytest.fixture
def sleeper():
    """A process that is no Python program; py-spy finds nothing in it."""
    child = subprocess.Popen(["sleep", "60"])
    yield child.pid
    child.kill()
    child.wait()


def taken(pid: int, sample: Path, folder: Path, executable: Path | None = None):
    served = Served(root_url="http://127.0.0.1:9", model="m", pid=pid)
    started = time.monotonic()
    found = profile.profile_engine(
        served, sample, folder, concurrency=2, client_cores=(CORE,), seconds=1, executable=executable
    )
    assert time.monotonic() - started < 10
    return found.cpu_side


def script(folder: Path, text: str) -> Path:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_L1_without_py_spy_the_share_is_unknown(sample, tmp_path):
    assert taken(os.getpid(), sample, tmp_path, tmp_path / "none").cause == "py-spy is not installed"


def test_L1_a_process_that_is_no_engine_gives_no_share(sleeper, sample, tmp_path):
    reading = taken(sleeper, sample, tmp_path)
    assert reading.status == "unknown"
    assert reading.cause.startswith("py-spy ended with 1: Error: ")


def test_L1_a_refusal_to_attach_names_the_right_that_is_missing(sample, tmp_path):
    refuses = script(tmp_path, "echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    assert taken(os.getpid(), sample, tmp_path, refuses).cause == profile.NOT_PERMITTED


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, who gives its rights away")
def test_L1_py_spy_without_ptrace_rights_is_recognised(sample, tmp_path):
    own = profile.py_spy()
    assert own is not None
    tmp_path.chmod(0o755)
    shutil.copy(own, "/tmp/ratchet-py-spy")  # where a user without rights may run it
    try:
        powerless = script(
            tmp_path, 'exec setpriv --reuid=65534 --regid=65534 --clear-groups -- /tmp/ratchet-py-spy "$@"'
        )
        assert taken(os.getpid(), sample, tmp_path, powerless).cause == profile.NOT_PERMITTED
    finally:
        Path("/tmp/ratchet-py-spy").unlink()


def test_L1_a_py_spy_that_ends_without_stacks_is_a_cause_as_well(sample, tmp_path):
    attaches = script(tmp_path, '[ "$1" = dump ] || exec sleep 30')
    reading = taken(os.getpid(), sample, tmp_path, attaches)
    assert reading.cause == "py-spy ended with -2: it said nothing"


def test_L1_a_busy_python_process_is_sampled_on_the_clients_core(tmp_path):
    busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
    try:
        said = profile.attach_refusal(profile.py_spy(), busy.pid)
        if said == profile.NOT_PERMITTED:
            pytest.skip(said)
        assert said is None
        spy = profile.Spy(profile.py_spy(), busy.pid, tmp_path / "stacks.txt", seconds=30, cores=(CORE,))
        try:
            time.sleep(2)
            assert os.sched_getaffinity(spy._process.pid) == {CORE}
            assert spy.stop() is None
        finally:
            spy.kill()
        assert "<module>" in (tmp_path / "stacks.txt").read_text()
        assert busy.poll() is None
    finally:
        busy.kill()
        busy.wait()
