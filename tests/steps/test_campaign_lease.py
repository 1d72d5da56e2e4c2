"""A campaign's lease lives while its process does, and no longer."""

from __future__ import annotations

import time
import uuid

import pytest

from infra.lease import Lease, LeaseHeld, read_lease
from infra.store import ObjectStore
from tasks.campaign import steps
from tasks.shared.records import Target


@pytest.fixture
def target(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(steps, "open_store", lambda: store)
    return Target(model="m", pool=uuid.uuid4().hex[:8])


def name(target: Target) -> str:
    return f"campaign/{target.key}"


def test_OR5_the_lease_is_kept_alive_beyond_its_time_and_given_back(store: ObjectStore, target: Target) -> None:
    with steps.campaign_lease(target, "c", ttl_s=2.0):
        time.sleep(3.0)
        held = read_lease(store, name(target))
        assert held is not None and held.live(time.time())
        with pytest.raises(LeaseHeld):
            Lease.acquire(store, name(target), owner="another", ttl_s=5, now=time.time())
    after = read_lease(store, name(target))
    assert after is not None and after.released


def test_OR1_a_killed_campaign_s_lease_runs_out_and_its_rerun_gets_a_higher_token(
    store: ObjectStore,
    target: Target,
) -> None:
    killed = Lease.acquire(store, name(target), owner="killed", ttl_s=1.0, now=time.time())
    time.sleep(1.2)
    with steps.campaign_lease(target, "c") as again:
        assert again.token == killed.token + 1


def test_OR5_a_lost_lease_ends_the_process(store: ObjectStore, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr(steps.os, "kill", lambda _pid, number: signals.append(number))
    with steps.campaign_lease(target, "c", ttl_s=2.0):
        Lease.acquire(store, name(target), owner="usurper", ttl_s=60, now=time.time() + 100)
        time.sleep(1.5)
        assert signals == [steps.signal.SIGTERM]
