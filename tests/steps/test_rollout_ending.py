"""How a rollout ends when it is killed on the way: nothing is lost, nothing is written twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from infra.readings import Reading
from infra.store import ObjectStore
from infra.traffic.switch import EnvoySwitch
from tasks.baseline.records import MetricBaseline
from tasks.canary import ending, steps, storage
from tasks.canary.records import CanaryVerdict, Phase, RolloutState, Verification
from tasks.shared.ledger import ledger_prefix
from tasks.shared.records import LedgerEntry, Outcome, Window
from tests.rules.trial_records import PRODUCTION
from tests.steps.test_rollout_ticks import Case, quiet_logger, stubs, switch

__all__ = ["quiet_logger", "stubs", "switch"]


class Killed(BaseException):
    """A SIGKILL: nothing after it is run."""


def kill(*_: object, **__: object) -> None:
    raise Killed


def metrics(tokens_per_s: float, p99_ms: float) -> list[MetricBaseline]:
    values = {
        "throughput_per_gpu": Reading.of(tokens_per_s, "tok/s"),
        "p99_latency": Reading.of(p99_ms, "ms", samples=1000),
        "error_rate": Reading.of(0.0, "%", samples=1000),
        "ttft_p99": Reading.of(300.0, "ms", samples=1000),
        "tpot_p99": Reading.of(30.0, "ms", samples=1000),
        "oom_count": Reading.of(0.0, "count"),
    }
    return [MetricBaseline(name=name, reading=reading) for name, reading in values.items()]


class Verifying:
    """A promoted rollout that waits for production's window."""

    def __init__(self, case: Case, after: list[MetricBaseline], monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.measured = case, 0
        criteria = PRODUCTION.model_copy(
            update={"windows": PRODUCTION.windows.model_copy(update={"baseline_s": 1.0})},
        )

        def measure(*_: object) -> list[MetricBaseline]:
            self.measured += 1
            return after

        monkeypatch.setattr(steps, "criteria_of", lambda *_: criteria)
        baseline = SimpleNamespace(metrics=metrics(100.0, 1000.0), accelerators=1)
        monkeypatch.setattr(steps, "baseline_of", lambda *_: baseline)
        monkeypatch.setattr(steps, "production_metrics", measure)
        monkeypatch.setattr(ending, "open_store", lambda: case.store)
        case.to_step()
        case.switch.set_weight(0.0)
        case.fleet.serving = {"stable": case.plan.config}
        rollout = storage.Rollout(case.store, case.key)
        state = rollout.load(time.time())
        rollout.save(state.model_copy(update={"phase": Phase.VERIFYING, "intent": "", "updated_s": time.time() - 10}))
        self.folder = rollout.folder

    def tick(self, *, window: bool) -> RolloutState:
        now_s = time.time()
        rollout = storage.Rollout(self.case.store, self.case.key)
        state = rollout.load(now_s)
        lease = storage.take_lease(self.case.store, state, self.case.plan.target, 30.0)
        given = Window(start_s=now_s - 5, end_s=now_s - 1) if window else None
        return steps.advance(rollout, state, lease, self.case.switch, self.case.fleet, given)  # type: ignore[arg-type]

    def conclude(self) -> CanaryVerdict:
        state = storage.Rollout(self.case.store, self.case.key).load(time.time())
        return ending.conclude(self.case.key, state)

    def verdict(self) -> CanaryVerdict:
        return self.case.store.get_record(f"{self.folder}/verdict.json", CanaryVerdict)

    def ledger(self) -> list[LedgerEntry]:
        found = self.case.store.list(ledger_prefix(self.case.plan.target))
        return [self.case.store.get_record(item.key, LedgerEntry) for item in found]


@pytest.fixture
def verifying(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float, float], Verifying]]:
    yield lambda tokens, p99: Verifying(Case(store, switch, stubs), metrics(tokens, p99), monkeypatch)


@pytest.mark.parametrize(
    ("phase", "tokens_per_s", "p99_ms", "outcome"),
    [(Phase.COMPLETED, 130.0, 1000.0, Outcome.PASS), (Phase.ROLLED_BACK, 130.0, 2000.0, Outcome.FAIL)],
)
def test_R7_production_s_numbers_outlive_a_kill_before_the_verdict(
    verifying: Callable[[float, float], Verifying], phase: Phase, tokens_per_s: float, p99_ms: float, outcome: Outcome
) -> None:
    case = verifying(tokens_per_s, p99_ms)
    assert case.tick(window=True).phase is phase
    # Killed here: the state is terminal, verdict and ledger are not written. The next tick completes them.
    assert case.ledger() == []
    verdict = case.conclude()
    assert (verdict.phase, verdict.judgement.outcome) == (phase, outcome)
    assert verdict.production_change_pct == pytest.approx(30.0)
    assert verdict.production_before["p99_latency"].value == 1000.0
    assert verdict.production_after["p99_latency"].value == p99_ms
    assert case.verdict() == verdict
    assert [(e.outcome_class, e.production_change_pct) for e in case.ledger()] == [(phase.value, pytest.approx(30.0))]


def test_R7_a_kill_between_measuring_and_the_state_does_not_measure_again(
    verifying: Callable[[float, float], Verifying], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = verifying(130.0, 1000.0)
    with monkeypatch.context() as killed:
        killed.setattr(storage.Rollout, "save", kill)
        with pytest.raises(Killed):
            case.tick(window=True)
    kept = case.case.store.get_record(f"{case.folder}/verification.json", Verification)
    assert case.tick(window=False).phase is Phase.COMPLETED
    assert case.measured == 1
    assert case.conclude().production_after == kept.after


def test_A1_a_kill_between_verdict_and_ledger_is_made_good_once(
    verifying: Callable[[float, float], Verifying], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = verifying(130.0, 1000.0)
    case.tick(window=True)
    with monkeypatch.context() as killed:
        killed.setattr(ending, "ledger_key", kill)
        with pytest.raises(Killed):
            case.conclude()
    assert case.verdict().phase is Phase.COMPLETED
    assert case.ledger() == []
    first = case.conclude()
    time.sleep(0.05)
    assert case.conclude() == first
    (entry,) = case.ledger()
    state = storage.Rollout(case.case.store, case.case.key).load(time.time())
    assert entry.at_s == state.updated_s


def test_A1_a_rollback_that_failed_and_then_holds_ends_as_rolled_back(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "open_store", lambda: store)
    case = Case(store, switch, stubs, fails={"canary": 99, "stable": 1})
    assert ending.conclude(case.key, case.to_step()).phase is Phase.ROLLBACK_FAILED
    assert not store.exists(f"{storage.rollout_folder(case.plan.target, case.plan.plan_id)}/verdict.json")
    rollout = storage.Rollout(store, case.key)
    state = rollout.load(time.time())
    lease = storage.take_lease(store, state, case.plan.target, 30.0)
    state = ending.roll_back(rollout, state, lease, switch, case.fleet)  # type: ignore[arg-type]
    assert ending.conclude(case.key, state).phase is Phase.ROLLED_BACK
    assert store.get_record(f"{rollout.folder}/verdict.json", CanaryVerdict).phase is Phase.ROLLED_BACK
    found = [store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(case.plan.target))]
    assert [e.outcome_class for e in found] == ["rollback failed", "rolled back"]


def test_R3_the_rollback_s_time_counts_from_the_decision(
    store: ObjectStore, switch: EnvoySwitch, stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a promotion stable may have to be made whole before the switch: that time is the canary's too."""
    case = Case(store, switch, stubs)
    case.to_step()
    case.fleet.serving["stable"] = case.plan.config
    ensure = case.fleet.ensure

    def slow(role: str, config: object, **options: object) -> None:
        time.sleep(0.7)
        ensure(role, config, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(case.fleet, "ensure", slow)
    rollout = storage.Rollout(store, case.key)
    state = rollout.load(time.time())
    lease = storage.take_lease(store, state, case.plan.target, 30.0)
    state = ending.roll_back(rollout, state, lease, switch, case.fleet)  # type: ignore[arg-type]
    assert state.phase is Phase.ROLLED_BACK
    assert state.rollback_ms is not None and state.rollback_ms >= 700
    assert case.fleet.renewed == ["canary"]
