"""The switch drilled before there is a plan, on a real Envoy and a real S3 (spec P1, R3)."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import requests

from infra.errors import BadInput
from infra.lease import Lease, LeaseHeld
from infra.store import ObjectStore
from infra.traffic.fleet import FleetError
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.campaign.steps import answer_preconditions
from tasks.canary.drill import rehearse
from tasks.canary.storage import lease_name
from tasks.shared.ledger import ledger_prefix
from tasks.shared.parameters import CampaignParams
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import LedgerEntry, Target, Window
from tests.conftest import LocalStack
from tests.fakes.fleet import StubFleet
from tests.fakes.stub_llm import StubLLM, StubTiming
from tests.rules.serving_configs import serving_config
from tests.rules.trial_records import DEMO

CONFIG = serving_config(max_num_seqs=2)


@pytest.fixture
def switch(stack: LocalStack) -> Iterator[EnvoySwitch]:
    made = EnvoySwitch.of_stack(stack.state_dir)
    made.set_weight(0.0)
    yield made
    made.set_weight(0.0)
    made.clear_endpoint("canary")


@pytest.fixture
def fleet(switch: EnvoySwitch) -> Iterator[StubFleet]:
    with StubLLM(StubTiming()) as stable:
        port = int(stable.base_url.split(":")[2].split("/")[0])
        yield StubFleet(switch, {"stable": port}, CONFIG)


@pytest.fixture
def target() -> Target:
    return Target(model="m", pool=uuid.uuid4().hex[:8])


@contextlib.contextmanager
def traffic(stack: LocalStack) -> Iterator[list[int]]:
    """Requests through Envoy until the end; their status codes."""
    codes: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            codes.append(requests.get(f"{stack.addresses.envoy}/v1/models", timeout=5).status_code)
            time.sleep(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield codes
    finally:
        ended.set()
        thread.join()


def drills(store: ObjectStore, target: Target) -> list[LedgerEntry]:
    return [store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(target)) if i.key.endswith(".json")]


def test_P1_a_drill_of_the_switch_is_measured_and_answers_question_five(
    stack: LocalStack, store: ObjectStore, switch: EnvoySwitch, fleet: StubFleet, target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from deployments.environment import embedded_settings

    with traffic(stack) as codes:
        figures = rehearse(store, target, switch, fleet, ttl_s=20.0)  # type: ignore[arg-type]
    assert codes
    assert set(codes) == {200}, "the drill broke requests"
    assert switch.weight() == 0.0
    assert figures.canary_requests_after == 0
    (line,) = drills(store, target)
    assert (line.kind, line.drill_ms) == ("drill", figures.decision_to_last_request_ms)
    for name, value in embedded_settings(stack.state_dir, "sandbox").items():
        monkeypatch.setenv(name, value)
    now_s = time.time()
    given = CampaignParams(
        campaign="drilled", target=target, criteria_path="c.md", config=CONFIG,
        window=Window(start_s=now_s - 100, end_s=now_s), traffic_prefix="nothing/",
    )  # fmt: skip
    pin = CriteriaPin(
        path="c.md", commit="c", blob="b", text_hash="t", criteria=DEMO, criteria_hash="h", pinned=True
    )  # fmt: skip
    answers = answer_preconditions.fn(given, pin).answers
    assert answers["rollback_drilled"].startswith("yes: the last drill took")
    other = given.model_copy(update={"target": Target(model="m", pool="never-drilled")})
    assert "ratchet drill" in answer_preconditions.fn(other, pin).answers["rollback_drilled"]


def test_R3_a_drill_without_traffic_proves_nothing_and_leaves_no_weight(
    store: ObjectStore, switch: EnvoySwitch, fleet: StubFleet, target: Target
) -> None:
    with pytest.raises(SwitchError, match="A drill needs traffic"):
        rehearse(store, target, switch, fleet, wait_s=0.5, ttl_s=20.0)  # type: ignore[arg-type]
    assert switch.weight() == 0.0
    assert drills(store, target) == []


def test_R2_no_drill_of_the_switch_beside_a_canary_or_a_rollout_or_without_stable(
    store: ObjectStore, switch: EnvoySwitch, fleet: StubFleet, target: Target
) -> None:
    held = Lease.acquire(store, lease_name(target), owner="a rollout", ttl_s=60, now=time.time())
    with pytest.raises(LeaseHeld):
        rehearse(store, target, switch, fleet)  # type: ignore[arg-type]
    held.release()
    fleet.serving["canary"] = CONFIG
    with pytest.raises(BadInput, match="a canary is there"):
        rehearse(store, target, switch, fleet)  # type: ignore[arg-type]
    fleet.serving.clear()
    with pytest.raises(FleetError, match="no stable replica"):
        rehearse(store, target, switch, fleet)  # type: ignore[arg-type]
    assert drills(store, target) == []
