"""The object store against a real SeaweedFS."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from infra.errors import BadInput, Unreachable
from infra.stack.control import open_stack_store, stack_down, stack_up
from infra.stack.files import stack_credentials
from infra.store import AccessDenied, ObjectMissing, ObjectStore, StoreError, StoreFull

pytestmark = pytest.mark.stack


class Verdict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: str
    gain: float


@pytest.fixture
def prefix() -> str:
    return f"t-{uuid.uuid4().hex}"


def test_put_once_writes_the_first_time_only(store, prefix):
    assert store.put_once(f"{prefix}/a", b"first") is True
    assert store.put_once(f"{prefix}/a", b"second") is False
    assert store.get(f"{prefix}/a") == b"first"


def test_one_of_many_racing_writers_wins(store, prefix):
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.put_once(f"{prefix}/race", f"writer {n}".encode()), range(8)))
    assert sum(won) == 1
    assert store.get(f"{prefix}/race") == f"writer {won.index(True)}".encode()


def test_put_if_match_swaps_only_the_version_that_was_read(store, prefix):
    store.put_once(f"{prefix}/a", b"1")
    _, etag = store.get_with_etag(f"{prefix}/a")
    newer = store.put_if_match(f"{prefix}/a", b"2", etag)
    assert newer == store.get_with_etag(f"{prefix}/a")[1]
    assert store.put_if_match(f"{prefix}/a", b"3", etag) is None
    assert store.put_if_match(f"{prefix}/absent", b"3", etag) is None
    assert store.get(f"{prefix}/a") == b"2"


def test_a_missing_object_is_named(store, prefix):
    with pytest.raises(ObjectMissing, match=f"{prefix}/none"):
        store.get(f"{prefix}/none")
    assert store.exists(f"{prefix}/none") is False


def test_the_empty_object_and_odd_keys_are_kept(store, prefix):
    for key in (f"{prefix}/empty", f"{prefix}/with space/ü+%.json"):
        assert store.put_once(key, b"") is True
        assert store.get(key) == b""
    assert sorted(info.key for info in store.list(prefix)) == [
        f"{prefix}/empty",
        f"{prefix}/with space/ü+%.json",
    ]


def test_list_goes_on_beyond_a_thousand_objects(store, prefix):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.put_once(f"{prefix}/{n:05}", b"x"), range(1_050)))
    found = list(store.list(f"{prefix}/"))
    assert [info.key for info in found] == [f"{prefix}/{n:05}" for n in range(1_050)]
    assert {info.size_bytes for info in found} == {1}


def test_list_of_an_unused_prefix_is_empty(store):
    assert list(store.list("never-used/")) == []


def test_content_is_stored_under_its_hash_once(store, prefix):
    key = store.put_content(f"{prefix}/samples/", b"abc", ".bin")
    assert key == f"{prefix}/samples/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad.bin"
    assert store.put_content(f"{prefix}/samples", b"abc", ".bin") == key
    assert store.get(key) == b"abc"


def test_a_record_comes_back_equal_and_is_written_once(store, prefix):
    verdict = Verdict(outcome="PASS", gain=0.1)
    assert store.put_record_once(f"{prefix}/v", verdict) is True
    assert store.put_record_once(f"{prefix}/v", Verdict(outcome="FAIL", gain=0)) is False
    assert store.get_record(f"{prefix}/v", Verdict) == verdict


def test_a_record_of_another_shape_is_named_with_its_field(store, prefix):
    store.put_once(f"{prefix}/v", b'{"outcome": "PASS"}')
    with pytest.raises(BadInput, match=f"{prefix}/v is not a Verdict: gain"):
        store.get_record(f"{prefix}/v", Verdict)


def test_S1_the_agents_identity_reads_and_may_not_write(stack, store, prefix):
    store.put_once(f"{prefix}/a", b"1")
    agent = open_stack_store(stack.state_dir, "agent")
    data, etag = agent.get_with_etag(f"{prefix}/a")
    assert data == b"1"
    assert [info.key for info in agent.list(prefix)] == [f"{prefix}/a"]
    for write in (
        lambda: agent.put_once(f"{prefix}/b", b"2"),
        lambda: agent.put_once(f"{prefix}/a", b"2"),
        lambda: agent.put_if_match(f"{prefix}/a", b"2", etag),
    ):
        with pytest.raises(AccessDenied, match=prefix):
            write()
    assert store.get(f"{prefix}/a") == b"1"


def test_S1_no_port_of_the_object_store_takes_objects_without_a_key(stack, store, prefix):
    import http.client

    from infra.stack.files import read_stack

    store.put_once(f"{prefix}/a", b"1")
    ports = read_stack(stack.paths).ports
    for listener in ("s3", "s3_filer"):
        path = f"/{prefix}/a" if listener == "s3" else f"/buckets/ratchet/{prefix}/a"
        for method in ("GET", "PUT", "DELETE"):
            connection = http.client.HTTPConnection("127.0.0.1", ports[listener], timeout=5)
            connection.request(method, path, body=b"evil" if method == "PUT" else None)
            assert connection.getresponse().status in (401, 403), (listener, method)
            connection.close()
    assert store.get(f"{prefix}/a") == b"1"


def test_a_wrong_secret_is_access_denied_and_is_not_shown(stack):
    key = stack_credentials(stack.paths).admin
    wrong = ObjectStore(stack.addresses.s3, "ratchet", key.access_key, "not-the-secret")
    with pytest.raises(AccessDenied) as caught:
        wrong.get("a")
    assert "not-the-secret" not in str(caught.value)
    with pytest.raises(AccessDenied):
        wrong.check()


def test_a_missing_bucket_is_named(stack):
    key = stack_credentials(stack.paths).admin
    other = ObjectStore(stack.addresses.s3, "nowhere", key.access_key, key.secret_key.get_secret_value())
    with pytest.raises(StoreError, match="nowhere"):
        other.check()


def test_a_store_that_does_not_answer_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        nobody = ObjectStore(address, "ratchet", "k", "s", connect_timeout_s=0.5, read_timeout_s=0.5)
        for call in (
            lambda: nobody.get("a"),
            lambda: nobody.put_once("a", b""),
            lambda: list(nobody.list("a")),
        ):
            with pytest.raises(Unreachable, match=address):
                call()


def test_a_store_that_accepts_and_stays_silent_is_unreachable():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = ObjectStore(address, "ratchet", "k", "s", connect_timeout_s=0.5, read_timeout_s=0.3)
        with pytest.raises(Unreachable):
            store.get("a")


def test_a_lost_answer_to_a_conditional_put_is_known_as_the_own_write(stack, store, prefix):
    """The first try is written, its answer lost; the second must not call the object a rival's."""
    upstream = int(stack.addresses.s3.rsplit(":", 1)[1])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_swallow_first_answer, args=(listener, upstream), daemon=True)
        thread.start()
        key = stack_credentials(stack.paths).admin
        # The signature covers the Host header, which the proxy passes on unchanged.
        flaky = ObjectStore(
            f"http://127.0.0.1:{port}",
            "ratchet",
            key.access_key,
            key.secret_key.get_secret_value(),
            read_timeout_s=3,
        )
        assert flaky.put_once(f"{prefix}/a", b"mine") is True
        assert flaky.put_once(f"{prefix}/a", b"other") is False
    assert store.get(f"{prefix}/a") == b"mine"


def _swallow_first_answer(listener: socket.socket, upstream: int) -> None:
    first = True
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(client, upstream, first), daemon=True).start()
        first = False


def _relay(client: socket.socket, upstream: int, swallow: bool) -> None:
    server = socket.create_connection(("127.0.0.1", upstream))

    def forward() -> None:
        while data := client.recv(65536):
            server.sendall(data)

    threading.Thread(target=forward, daemon=True).start()
    try:
        while data := server.recv(65536):
            if swallow and b"200 OK" in data:
                client.close()
                return
            client.sendall(data)
    except OSError:
        pass


def test_a_full_disk_is_named_and_what_is_stored_can_still_be_read(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", small], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        stack_up(small / "state", parts=("s3",), prefect=False)
        store = open_stack_store(small / "state")
        store.put_once("first", b"1")
        with pytest.raises(StoreFull, match="full"):
            for number in range(12):
                store.put_once(f"big/{number}", os.urandom(8_000_000))
        assert store.get("first") == b"1"
    finally:
        stack_down(small / "state")
        subprocess.run(["umount", small], check=True)
