"""Up, down, status and healing of a real stack; each test that kills has the stack of this module."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import psutil
import pytest

from infra.errors import BadInput
from infra.stack.atomic import LockHeld, file_lock, replace_file
from infra.stack.control import open_stack_store, stack_down, stack_status, stack_up
from infra.stack.files import read_parts, read_stack
from infra.stack.parts import MissingBinary, binary_of
from infra.stack.paths import StackPaths
from infra.stack.ports import free_port, port_is_free, wanted_ports
from infra.stack.probes import http_get
from infra.stack.processes import MARKER, describe, find, marked
from infra.stack.records import StackError
from infra.stack.targets import set_targets

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("life")
    yield folder
    stack_down(folder)


def up(folder, **more):
    return stack_up(folder, prefect=False, **more)


def pids(status):
    return {status.supervisor.name: status.supervisor.pid, **{part.name: part.pid for part in status.parts}}


def living(named_pids):
    """Names whose process still lives; one that only waits to be collected by its parent does not."""
    alive = set()
    for name, pid in named_pids.items():
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.add(name)
        except psutil.NoSuchProcess:
            continue
    return alive


def kill(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    deadline = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)


def test_up_starts_every_part_and_a_second_up_changes_nothing(state_dir):
    first = up(state_dir)
    assert first.ok
    assert [part.name for part in first.parts] == ["s3", "prometheus", "envoy"]
    second = up(state_dir)
    assert pids(second) == pids(first)
    assert [part.address for part in second.parts] == [part.address for part in first.parts]


def test_every_listener_is_on_the_loopback_address_only(state_dir):
    for pid in pids(up(state_dir)).values():
        for connection in psutil.Process(pid).net_connections():
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1", connection


def test_the_listeners_are_the_recorded_ones_only(state_dir):
    status = up(state_dir)
    recorded = set(read_stack(StackPaths(state_dir)).ports.values())
    for pid in pids(status).values():
        for connection in psutil.Process(pid).net_connections():
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.port in recorded or connection.laddr.port - 10_000 in recorded


def test_keys_are_readable_by_their_owner_only(state_dir):
    up(state_dir)
    paths = StackPaths(state_dir)
    for file in (paths.credentials_file, paths.s3_dir / "identities.json", paths.s3_dir / "security.toml"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = json.loads(paths.credentials_file.read_text())["admin"]["secret_key"]
    shown = [" ".join(psutil.Process(pid).cmdline()) for pid in pids(stack_status(state_dir)).values()]
    assert not any(secret in line for line in shown)
    assert not any(secret in log.read_text() for log in paths.logs_dir.iterdir())


@pytest.mark.parametrize("victim", ["s3", "prometheus", "envoy", "supervisor"])
def test_up_heals_after_kill_9_of(state_dir, victim):
    before = up(state_dir)
    store = open_stack_store(state_dir)
    store.put_once(f"kept/{victim}", b"1")
    killed = pids(before)[victim]
    kill(killed)
    after = up(state_dir)
    assert after.ok
    assert pids(after)[victim] != killed
    assert [part.address for part in after.parts] == [part.address for part in before.parts]
    assert open_stack_store(state_dir).get(f"kept/{victim}") == b"1"
    alive = {process.pid for process in marked(str(state_dir))}
    assert alive == set(pids(after).values())


def test_up_heals_after_kill_9_of_everything_at_once(state_dir):
    before = pids(up(state_dir))
    for pid in (before["supervisor"], *(pid for name, pid in before.items() if name != "supervisor")):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    after = up(state_dir)
    assert after.ok
    assert not set(pids(after).values()) & set(before.values())


def test_the_supervisor_starts_a_killed_part_by_itself_and_says_how_it_ended(state_dir):
    part = up(state_dir).part("prometheus")
    kill(part.pid)
    deadline = time.monotonic() + 30
    while not (now := stack_status(state_dir)).ok and time.monotonic() < deadline:
        time.sleep(0.05)
    assert now.part("prometheus").pid != part.pid
    assert now.part("prometheus").restarts == part.restarts + 1
    recorded = read_parts(StackPaths(state_dir))
    assert recorded.parts["prometheus"].last_exit == "ended by signal 9"


def test_a_forgotten_process_of_the_stack_is_found_by_its_environment(state_dir):
    up(state_dir)
    orphan = subprocess.Popen(
        ["sleep", "600"],
        env={**os.environ, MARKER: str(StackPaths(state_dir).state_dir)},
        start_new_session=True,
    )
    stack_down(state_dir)
    assert orphan.wait(timeout=10) == -signal.SIGTERM


def test_a_process_is_known_again_after_the_clock_was_set_and_not_after_its_pid_was_reused():
    own = describe(os.getpid())
    assert find(own.model_copy(update={"create_time": own.create_time - 3600})).pid == os.getpid()
    assert find(own.model_copy(update={"start_ticks": own.start_ticks + 1})) is None
    assert find(own.model_copy(update={"boot_id": "another boot"})) is None
    assert find(own.model_copy(update={"pid": 2**22 + 1})) is None


def test_down_leaves_no_process_and_can_be_repeated(state_dir):
    before = pids(up(state_dir))
    ports = read_stack(StackPaths(state_dir)).ports
    stack_down(state_dir)
    assert living(before) == set()
    assert marked(str(state_dir)) == []
    assert all(port_is_free(port) for port in ports.values())
    stack_down(state_dir)
    status = stack_status(state_dir)
    assert not status.ok
    assert {part.wrong for part in status.parts} == {"not running"}


def test_down_ends_the_parts_of_a_killed_supervisor(state_dir):
    before = pids(up(state_dir))
    kill(before["supervisor"])
    stack_down(state_dir)
    assert living(before) == set()


def test_down_finds_the_processes_without_any_record(state_dir):
    before = pids(up(state_dir))
    StackPaths(state_dir).parts_file.unlink()
    stack_down(state_dir)
    assert living(before) == set()


def test_two_up_at_once_start_one_stack(state_dir):
    stack_down(state_dir)
    code = (
        "import sys; from pathlib import Path; from infra.stack.control import stack_up; "
        "s = stack_up(Path(sys.argv[1]), prefect=False); print(s.supervisor.pid, s.ok)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(state_dir)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120)[0].split() for process in both]
    assert answers[0] == answers[1]
    assert answers[0][1] == "True"
    assert len(marked(str(state_dir))) == 4


def test_a_second_supervisor_of_the_same_folder_gives_way(state_dir):
    up(state_dir)
    second = subprocess.run(
        [sys.executable, "-m", "infra.stack.supervisor", "--state", str(state_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 3
    assert "locked" in second.stdout
    assert stack_status(state_dir).ok


def test_a_taken_port_is_moved_and_prometheus_still_finds_envoy(state_dir):
    up(state_dir)
    stack_down(state_dir)
    paths = StackPaths(state_dir)
    before = read_stack(paths).ports
    with socket.socket() as plain, socket.socket() as grpc:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        plain.bind(("127.0.0.1", before["envoy_admin"]))
        plain.listen(1)
        grpc.bind(("127.0.0.1", before["s3"] + 10_000))  # only the gRPC port of the object store is taken
        grpc.listen(1)
        status = up(state_dir)
    after = read_stack(paths).ports
    assert status.ok
    assert after["envoy_admin"] > before["envoy_admin"]
    assert after["s3"] > before["s3"]
    assert after["prometheus"] == before["prometheus"]
    assert status.part("s3").address == f"http://127.0.0.1:{after['s3']}"
    _wait_for_target(after["prometheus"], "envoy", f"127.0.0.1:{after['envoy_admin']}")


def test_two_stacks_live_side_by_side(state_dir, tmp_path):
    one = up(state_dir)
    try:
        two = up(tmp_path, parts=("envoy",))
        assert two.ok
        assert two.part("envoy").address != one.part("envoy").address
    finally:
        stack_down(tmp_path)
    assert stack_status(state_dir).ok
    assert pids(stack_status(state_dir)) == pids(one)


def test_targets_are_scraped_while_prometheus_runs_and_roles_do_not_touch_each_other(state_dir):
    up(state_dir)
    paths = StackPaths(state_dir)
    ports = read_stack(paths).ports
    own = f"127.0.0.1:{ports['prometheus']}"
    set_targets(paths, "engines", [own], {"role": "stable"})
    set_targets(paths, "engines", [own], {"role": "canary", "config": "abc"})
    _wait_for_target(ports["prometheus"], "engines", own, role="stable")
    _wait_for_target(ports["prometheus"], "engines", own, role="canary")
    set_targets(paths, "engines", [], {"role": "canary"})
    deadline = time.monotonic() + 30
    while any(t["labels"].get("role") == "canary" for t in _targets(ports["prometheus"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert any(t["labels"].get("role") == "stable" for t in _targets(ports["prometheus"]))
    for bad in (("envoy", [own], {}), ("engines", [own], {}), ("engines", ["http://x"], {"role": "stable"})):
        with pytest.raises(BadInput):
            set_targets(paths, *bad)


def test_a_part_that_cannot_start_is_named_with_its_log(tmp_path):
    paths = StackPaths(tmp_path)
    paths.prepare()
    (paths.prometheus_dir / "data").write_text("a file where the folder should be")
    try:
        with pytest.raises(StackError, match=r"prometheus did not get ready: .*logs/prometheus\.log"):
            up(tmp_path, parts=("prometheus",), deadline_s=4)
    finally:
        stack_down(tmp_path)


def test_a_missing_prometheus_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingBinary, match="apt-get install prometheus"):
        binary_of("prometheus")


def test_status_and_down_of_a_stack_that_never_was(tmp_path):
    assert stack_status(tmp_path / "none").ok is False
    stack_down(tmp_path / "none")
    with pytest.raises(StackError, match="no object store was ever started"):
        open_stack_store(tmp_path / "none")


def test_unknown_parts_ports_and_identities_are_refused(tmp_path, monkeypatch, state_dir):
    with pytest.raises(BadInput, match="redis"):
        up(tmp_path, parts=("redis",))
    with pytest.raises(BadInput, match="web"):
        up(tmp_path, ports={"web": 8080})
    with pytest.raises(BadInput, match="54999"):
        wanted_ports({"s3": 55_000})
    monkeypatch.setenv("RATCHET_PORT_ENVOY", "12x")
    with pytest.raises(BadInput, match="RATCHET_PORT_ENVOY"):
        wanted_ports()
    monkeypatch.setenv("RATCHET_PORT_ENVOY", "12000")
    assert wanted_ports({"prometheus": 12_001}) == {"envoy": 12_000, "prometheus": 12_001}


def test_a_free_port_skips_what_is_promised_and_what_is_taken():
    start = free_port("prometheus", 21_500)
    assert free_port("prometheus", start, {start, start + 1}) >= start + 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", start))
        taken.listen(1)
        assert not port_is_free(start)
        assert free_port("prometheus", start) > start


def test_a_file_lock_is_exclusive_and_ends_with_its_holder(tmp_path):
    with (
        file_lock(tmp_path / "lock", wait_s=0),
        pytest.raises(LockHeld, match="lock"),
        file_lock(tmp_path / "lock", wait_s=0.1),
    ):
        pass
    with file_lock(tmp_path / "lock", wait_s=0):
        pass


def test_a_file_is_replaced_whole_and_leaves_nothing_behind(tmp_path):
    replace_file(tmp_path / "a", "one", mode=0o600)
    replace_file(tmp_path / "a", b"two", mode=0o600)
    assert (tmp_path / "a").read_text() == "two"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.flow
def test_the_prefect_server_is_a_part_keeps_its_data_and_heals(tmp_path):
    try:
        first = stack_up(tmp_path, parts=(), prefect=True, deadline_s=120)
        part = first.part("prefect")
        port = int(part.address.rsplit(":", 1)[1])
        assert http_get(port, "/api/health")[0] == 200
        assert (tmp_path / "prefect" / "prefect.db").exists()
        kill(part.pid)
        second = stack_up(tmp_path, parts=(), prefect=True, deadline_s=120)
        assert second.part("prefect").pid != part.pid
        assert second.part("prefect").address == part.address
    finally:
        stack_down(tmp_path)
    assert marked(str(tmp_path)) == []


def _targets(port: int) -> list[dict]:
    return json.loads(http_get(port, "/api/v1/targets?state=active")[1])["data"]["activeTargets"]


def _wait_for_target(port: int, job: str, address: str, **labels: str) -> None:
    wanted = {"job": job, "instance": address, **labels}
    deadline = time.monotonic() + 30
    while True:
        seen = _targets(port)
        if any(wanted.items() <= t["labels"].items() and t["health"] == "up" for t in seen):
            return
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
