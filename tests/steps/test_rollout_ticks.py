"""The canary stage against a real S3 and a real Envoy; the replicas are stubs, for faults on demand."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.lease import Lease, LeaseHeld, read_lease
from infra.store import ObjectStore
from infra.traffic.switch import EnvoySwitch, SwitchError
from tasks.canary import ending, steps, storage
from tasks.canary import rollout as machine
from tasks.canary.records import Approval, Phase, RolloutPlan, RolloutState
from tasks.shared.records import CanaryStep, Target
from tests.conftest import LocalStack
from tests.fakes.fleet import StubFleet
from tests.fakes.stub_llm import StubLLM, StubTiming
from tests.rules.serving_configs import serving_config

OLD, NEW = serving_config(max_num_seqs=2), serving_config(max_num_seqs=4)


def port_of(stub: StubLLM) -> int:
    return int(stub.base_url.split(":")[2].split("/")[0])


@pytest.fixture(scope="module")
def stubs() -> Iterator[dict[str, int]]:
    with StubLLM(StubTiming()) as stable, StubLLM(StubTiming()) as canary:
        yield {"stable": port_of(stable), "canary": port_of(canary)}


@pytest.fixture
def switch(stack: LocalStack) -> Iterator[EnvoySwitch]:
    made = EnvoySwitch.of_stack(stack.state_dir)
    made.set_weight(0.0)
    yield made
    made.set_weight(0.0)


@pytest.fixture(autouse=True)
def quiet_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    for module in (steps, ending):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("rollout"))


class Case:
    """One plan in S3 with what a tick needs."""

    def __init__(
        self, store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], fails: dict[str, int] | None = None
    ) -> None:
        self.store, self.switch = store, switch
        self.fleet = StubFleet(switch, stubs, OLD, fails)
        name = uuid.uuid4().hex
        step = CanaryStep(share=0.5, duration_s=1, stop_on=("error_rate",), min_samples=1, max_hold_s=30)
        self.plan = RolloutPlan(
            plan_id=name,
            target=Target(model="m", pool=name[:8]),
            campaign="c",
            config=NEW,
            config_hash=NEW.config_hash(),
            baseline_config=OLD,
            baseline_hash=OLD.config_hash(),
            changes={"max_num_seqs": 4},
            criteria_hash="x",
            verdict_hash="y",
            expected_gain_pct=20.0,
            risks=(),
            steps=(step, step.model_copy(update={"share": 1.0})),
            created_s=time.time() - 5,
        )
        self.key = f"tests/{name}/plan.json"
        store.put_record_once(self.key, self.plan)

    def approve(self, decision: str = "approve", expires_in_s: float = 600.0, config_hash: str = "") -> None:
        now_s = time.time()
        self.store.put_record_once(
            f"approvals/{self.plan.content_hash()}.json",
            Approval(
                plan_hash=self.plan.content_hash(),
                config_hash=config_hash or self.plan.config_hash,
                decision="reject" if decision == "reject" else "approve",
                by="Ada",
                at_s=now_s - 1,
                expires_s=now_s + expires_in_s,
            ),
        )

    def tick(self) -> RolloutState:
        rollout = storage.Rollout(self.store, self.key)
        state = rollout.load(time.time())
        if state.phase in machine.TERMINAL:
            return state
        lease = storage.take_lease(self.store, state, self.plan.target, 30.0)
        return steps.advance(rollout, state, lease, self.switch, self.fleet, None)  # type: ignore[arg-type]

    def to_step(self) -> RolloutState:
        self.approve()
        self.tick()
        return self.tick()


def test_S1_nothing_moves_without_an_approval(store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int]) -> None:
    case = Case(store, switch, stubs)
    for _ in range(2):
        state = case.tick()
        assert state.phase is Phase.PREPARED
        assert "waits for approval" in state.reason
    assert case.fleet.calls == []
    assert switch.weight() == 0.0


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("rejected", {"decision": "reject"}),
        ("expired", {"expires_in_s": -1.0}),
        ("configuration", {"config_hash": "0" * 64}),
    ],
)
def test_S1_a_no_an_expired_yes_and_a_yes_to_something_else_refuse(
    store: ObjectStore,
    switch: EnvoySwitch,
    stubs: dict[str, int],
    why: str,
    change: dict[str, object],
) -> None:
    case = Case(store, switch, stubs)
    case.approve(**change)  # type: ignore[arg-type]
    state = case.tick()
    assert state.phase is Phase.REFUSED
    assert why in state.reason
    assert case.fleet.calls == []


def test_R3_what_a_killed_drill_left_on_the_switch_is_taken_back_before_a_canary_starts(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    case = Case(store, switch, stubs)
    switch.set_endpoint("canary", "127.0.0.1", stubs["stable"])
    switch.set_weight(0.5)
    case.approve()
    assert case.tick().phase is Phase.DEPLOYING
    assert switch.weight() == 0.0


def test_R7_a_rollout_goes_on_in_another_process_from_its_written_state(
    store: ObjectStore,
    switch: EnvoySwitch,
    stubs: dict[str, int],
) -> None:
    case = Case(store, switch, stubs)
    assert case.to_step().phase is Phase.STEP
    assert switch.weight() == pytest.approx(0.5)
    again = Case.__new__(Case)
    again.__dict__.update(case.__dict__)
    again.switch.set_weight(0.0)  # what the guardian does to a killed rollout
    assert again.tick().phase is Phase.STEP
    assert switch.weight() == pytest.approx(0.5)


def test_CA5_a_canary_that_does_not_start_is_rolled_back_to_the_old_configuration(
    store: ObjectStore,
    switch: EnvoySwitch,
    stubs: dict[str, int],
) -> None:
    case = Case(store, switch, stubs, fails={"canary": 99})
    state = case.to_step()
    assert state.phase is Phase.ROLLED_BACK
    assert "oom_start" in state.reason
    assert case.fleet.serves("stable", OLD)
    assert switch.weight() == 0.0
    assert case.tick().phase is Phase.ROLLED_BACK  # terminal: nothing starts again


def test_CA5_a_dead_canary_is_rolled_back_at_once(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SETTLE_S", 0.0)
    monkeypatch.setattr(
        steps, "criteria_of", lambda *_: __import__("tests.rules.trial_records", fromlist=["x"]).PRODUCTION
    )
    case = Case(store, switch, stubs)
    case.to_step()
    case.fleet.serving.pop("canary")
    state = case.tick()
    assert state.phase is Phase.ROLLED_BACK
    assert "process is gone" in state.reason
    assert switch.weight() == 0.0
    assert state.rollback_ms is not None


def test_CA5_a_failed_rollback_is_loud_and_blocks(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(store, switch, stubs, fails={"canary": 99, "stable": 99})
    state = case.to_step()
    assert state.phase is Phase.ROLLBACK_FAILED
    assert "rollback failed" in state.reason


def test_R7_two_writers_of_one_state_cannot_both_win(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    case = Case(store, switch, stubs)
    one, two = storage.Rollout(store, case.key), storage.Rollout(store, case.key)
    first, second = one.load(time.time()), two.load(time.time())
    one.save(first.model_copy(update={"reason": "one"}))
    with pytest.raises(SwitchError, match="written by another process"):
        two.save(second.model_copy(update={"reason": "two"}))


def test_R7_the_lease_is_held_between_ticks_and_given_back_at_the_end(
    store: ObjectStore,
    switch: EnvoySwitch,
    stubs: dict[str, int],
) -> None:
    case = Case(store, switch, stubs)
    case.to_step()
    held = read_lease(store, storage.lease_name(case.plan.target))
    assert held is not None and held.live(time.time())
    with pytest.raises(Exception, match="held"):
        Lease.acquire(store, storage.lease_name(case.plan.target), owner="another", ttl_s=5, now=time.time())
    case.fleet.fails["stable"] = 0
    rollout = storage.Rollout(store, case.key)
    state = rollout.load(time.time())
    rollout.save(machine.intend_rollback(state, time.time(), "by hand", token=state.token))
    assert case.tick().phase is Phase.ROLLED_BACK
    after = read_lease(store, storage.lease_name(case.plan.target))
    assert after is not None and after.released


def test_R2_a_second_change_group_waits_until_the_first_has_ended(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Case(store, switch, stubs), Case(store, switch, stubs)
    second.plan = second.plan.model_copy(update={"target": first.plan.target, "plan_id": uuid.uuid4().hex})
    second.key = f"tests/{second.plan.plan_id}/plan.json"
    store.put_record_once(second.key, second.plan)
    second.approve()
    first.to_step()
    with pytest.raises(LeaseHeld):
        second.tick()
    # The first one's process died and its lease ran out: its rollout has not ended for that.
    held = read_lease(store, storage.lease_name(first.plan.target))
    assert held is not None
    now = time.time
    with monkeypatch.context() as later:
        later.setattr(storage.time, "time", lambda: now() + 120)
        state = second.tick()
    assert state.phase is Phase.PREPARED
    assert f"rollout {first.plan.plan_id[:12]} (step) has not ended" in state.reason
    assert second.fleet.calls == []
    rollout = storage.Rollout(store, first.key)
    state = rollout.load(time.time())
    rollout.save(machine.intend_rollback(state, time.time(), "by hand", token=state.token))
    assert first.tick().phase is Phase.ROLLED_BACK
    assert second.tick().phase is Phase.DEPLOYING


def test_R2_a_plan_that_was_measured_against_another_stable_is_refused(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    case = Case(store, switch, stubs)
    case.approve()
    case.fleet.serving["stable"] = OLD.with_arg("max_num_seqs", 3)
    state = case.tick()
    assert state.phase is Phase.REFUSED
    assert "run a new campaign" in state.reason
    dead = Case(store, switch, stubs)
    dead.approve()
    del dead.fleet.serving["stable"]
    state = dead.tick()
    assert state.phase is Phase.PREPARED
    assert "no stable replica runs" in state.reason


def test_the_state_folder_of_a_rollout_is_keyed_by_target(tmp_path: Path) -> None:
    assert storage.rollout_folder(Target(model="a/b", pool="p"), "r") == "rollouts/a_b@p/r"
