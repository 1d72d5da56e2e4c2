"""The guardian as the runbook starts it, against a real S3 and a real Envoy."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from deployments.environment import embedded_settings
from infra.lease import Lease
from infra.metrics.reader import MetricsReader
from infra.store import ObjectStore
from infra.traffic.switch import EnvoySwitch
from tasks.canary.storage import lease_name
from tasks.shared.records import Target
from tests.conftest import LocalStack
from tests.steps.test_rollout_ticks import stubs, switch

__all__ = ["stubs", "switch"]

ROOT = Path(__file__).parents[2]


def test_R7_the_runbook_s_guardian_takes_a_lost_canary_to_weight_0(
    stack: LocalStack, store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    lines = (ROOT / "docs" / "runbook.md").read_text().splitlines()
    (command,) = (line for line in lines if line.startswith("python -m infra.traffic.guardian"))
    target = Target(model="model", pool=f"pool-{time.time_ns()}")
    Lease.acquire(store, lease_name(target), owner="a rollout that died", ttl_s=1.0, now=time.time() - 60)
    switch.set_endpoint("canary", "127.0.0.1", stubs["canary"])
    switch.set_weight(0.5)
    given = command.replace('"$RATCHET_PRODUCTION_STATE_DIR"', shlex.quote(str(stack.state_dir)))
    _, *arguments = shlex.split(given.replace("MODEL@POOL", target.key))
    s3 = {k: v for k, v in embedded_settings(stack.state_dir, "production").items() if k.startswith("RATCHET_S3_")}
    guardian = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env={**os.environ, **s3})
    try:
        deadline = time.monotonic() + 60
        while switch.weight() > 0 and time.monotonic() < deadline and guardian.poll() is None:
            time.sleep(0.1)
        assert switch.weight() == 0
        prometheus = MetricsReader(stack.addresses.prometheus, 5.0)
        query = f'ratchet_guardian_zeroes_total{{job="ratchet",target="{target.key}"}} > 0'
        while not prometheus.instant(query, time.time()) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert prometheus.instant(query, time.time())
        lease = f'ratchet_rollout_lease{{target="{target.key}",ratchet_rollout_lease="expired"}}'
        assert prometheus.instant(lease, time.time())[0].value == 1
    finally:
        guardian.terminate()
        guardian.wait(10)
    assert guardian.returncode == 0
    assert not list(stack.paths.targets_dir.glob("ratchet-guardian_*.json")) or all(
        file.read_text() == "[]" for file in stack.paths.targets_dir.glob("ratchet-guardian_*.json")
    ), "Prometheus goes on asking a guardian that has ended"
