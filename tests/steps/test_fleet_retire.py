"""A replica that takes its time to end does not cost the rollout its lease; no engine, no Envoy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.engine import processes
from infra.lease import Lease, LeaseHeld
from infra.settings.production import ProductionSettings
from infra.store import ObjectStore
from infra.traffic.fleet import LocalFleet, Replica
from tests.rules.serving_configs import serving_config

SLOW_TO_END = (
    "import signal,sys,time; signal.signal(15, lambda *_: (time.sleep(2.5), sys.exit())); print(1, flush=True)"
)
CONFIG = serving_config(max_num_seqs=2)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded canary that needs 2.5 s to end."""
    engine_id = uuid.uuid4().hex
    child = subprocess.Popen(
        [sys.executable, "-c", f"{SLOW_TO_END}; time.sleep(60)"],
        env={**os.environ, processes.ID_VARIABLE: engine_id},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    file = tmp_path / "production" / "canary.json"
    file.parent.mkdir(parents=True)
    file.write_text(
        Replica(
            role="canary",
            config=CONFIG,
            config_hash=CONFIG.config_hash(),
            engine_id=engine_id,
            nonce="n",
            pid=child.pid,
            port=1,
            log=tmp_path / "log",
        ).model_dump_json()
    )
    yield child
    child.kill()
    child.wait()


class DrainingSwitch:
    """Two seconds of requests under way on the canary."""

    def __init__(self) -> None:
        self.until_s = time.monotonic() + 2.0
        self.cleared: list[str] = []

    def counters(self) -> dict[str, SimpleNamespace]:
        return {"canary": SimpleNamespace(active=int(time.monotonic() < self.until_s))}

    def clear_endpoint(self, cluster: str) -> None:
        self.cleared.append(cluster)


def test_R7_the_lease_lives_through_draining_and_ending_a_replica(
    store: ObjectStore, tmp_path: Path, replica: subprocess.Popen[bytes]
) -> None:
    name = f"rollout/{uuid.uuid4().hex}"
    lease = Lease.acquire(store, name, owner="rollout", ttl_s=1.5, now=time.time())
    switch, started_s = DrainingSwitch(), time.monotonic()
    LocalFleet(ProductionSettings(state_dir=tmp_path)).drain_and_retire(
        "canary",
        switch,  # type: ignore[arg-type]
        renew=lambda: lease.keep(time.time()),
    )
    assert time.monotonic() - started_s > 4.0
    assert replica.poll() is not None
    assert switch.cleared == ["canary"]
    lease.check(time.time())
    with pytest.raises(LeaseHeld):
        Lease.acquire(store, name, owner="another", ttl_s=5, now=time.time())
