"""A whole campaign under Prefect's harness: real S3, real replay processes, stub engines of known speed."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from infra.bench.stacks import CpuProfile
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.environment import home
from infra.readings import Reading
from infra.store import ObjectStore
from tasks.baseline.records import Calibration, MetricBaseline
from tasks.bottleneck import evidence as ids
from tasks.canary.plan import rollout_plan
from tasks.canary.records import RolloutPlan
from tasks.shared.ledger import ledger_prefix
from tasks.shared.paired import estimate
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import LedgerEntry, Outcome, OutcomeClass, Target, Window
from tasks.shared.stops import GateFailed
from tests.conftest import LocalStack
from tests.fakes.bench import StubBench
from tests.fakes.stub_llm import StubTiming
from tests.flows.drills import put_drill
from tests.rules.serving_configs import serving_config
from tests.rules.test_bottleneck_rules import DEMO, pack

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.flow,
    pytest.mark.stack,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not home().is_complete(), reason="the engine's knobs are not dumped yet (make engine)"),
]
OLD = serving_config(
    max_num_seqs=2, enable_prefix_caching=False, max_model_len=512, block_size=32, max_num_batched_tokens=1024
)
PRODUCTION = {
    "throughput_per_gpu": (16.0, "tok/s"),
    "p50_latency": (2000.0, "ms"),
    "p90_latency": (4000.0, "ms"),
    "p99_latency": (6000.0, "ms"),
    "ttft_p99": (2000.0, "ms"),
    "tpot_p99": (120.0, "ms"),
    "error_rate": (0.0, "%"),
    "oom_count": (0.0, "count"),
}


@pytest.fixture(scope="module", autouse=True)
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=90):
        yield


def timing(config: ServingConfig) -> StubTiming:
    """Slots as max_num_seqs says, a shorter prefill with the cache on, nothing served beyond the context."""
    args = config.args
    limit = int(args["max_model_len"])
    return StubTiming(
        first_token_s=0.03 if args["enable_prefix_caching"] else 0.08,
        token_gap_s=0.005,
        slots=int(args["max_num_seqs"]),
        reject_prompts_from_tokens=limit - 20,
    )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBench]:
    found = StubBench(timing)
    monkeypatch.setattr("tasks.sandbox.steps.open_bench", found.open)
    monkeypatch.setattr("tasks.sandbox.steps.close_bench", lambda: None)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Prometheus would say of a busy production; the readers have tests of their own."""
    metrics = tuple(MetricBaseline(name=n, reading=Reading.of(v, u, samples=100)) for n, (v, u) in PRODUCTION.items())
    monkeypatch.setattr("tasks.baseline.steps.production_metrics", lambda *_: metrics)
    seen = {**DEMO, ids.MAX_NUM_SEQS: 2, ids.RUNNING_MAX: 2, ids.WAITING_AVG: 3, ids.MAX_MODEL_LEN: 512}
    monkeypatch.setattr("tasks.sandbox.profile.profile_cpu_side", lambda *_: CpuProfile.unknown("stubs have no stacks"))
    monkeypatch.setattr(
        "tasks.bottleneck.steps.collect_evidence",
        lambda campaign, *_, **__: pack(seen).model_copy(update={"campaign": campaign}),
    )
    monkeypatch.setattr("tasks.sandbox.profile.profile_cpu_side", lambda *_: None)


@pytest.fixture
def given(stack: LocalStack, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignParams:
    from deployments.environment import embedded_settings

    for name, value in embedded_settings(stack.state_dir, "sandbox").items():
        if not name.startswith("PREFECT"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("RATCHET_SANDBOX_WORK_DIR", str(tmp_path / "sandbox"))
    criteria = tmp_path / "criteria.md"
    text = (ROOT / "docs" / "perf-baseline-demo.md").read_text()
    for old, new in {
        "workloads: []": "workloads: [short_prompts, long_prompts]",
        "span_s: 8": "span_s: 0.8",
        "short_below_tokens: 460": "short_below_tokens: 94",
        "medium_below_tokens: 560": "medium_below_tokens: 142",
    }.items():
        assert old in text
        text = text.replace(old, new)
    criteria.write_text(text)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    name = uuid.uuid4().hex[:8]
    now_s = time.time()
    start_s = now_s - 70
    for number, window in enumerate((0.0, 20.0)):
        lines = [
            json.dumps(
                {
                    "request_id": f"{number}-{i}",
                    "conversation_id": f"c{number}-{i}",
                    "t_epoch_s": start_s + window + 1 + i,
                    "model": "m",
                    "messages": [{"role": "user", "content": " ".join([f"w{number}x{i}"] * (20, 120, 300)[i % 3])}],
                    "prompt_tokens": (20, 120, 300)[i % 3],
                    "output_tokens": 8,
                    "status": "ok",
                    "http_status": 200,
                    "finish_reason": "length",
                }
            )
            for i in range(14)
        ]
        store.put_once(f"traffic/{name}/part-{number}.jsonl.gz", gzip.compress("\n".join(lines).encode()))
    put_drill(store, Target(model="m", pool=name))
    return CampaignParams(
        campaign=f"w-{name}",
        target=Target(model="m", pool=name),
        criteria_path=str(criteria),
        config=OLD.model_copy(update={"engine_build": load_catalogue(home().knobs).engine_build}),
        window=Window(start_s=start_s, end_s=now_s),
        sample_window=Window(start_s=start_s, end_s=start_s + 18),
        held_out_window=Window(start_s=start_s + 20, end_s=start_s + 38),
        traffic_prefix=f"traffic/{name}/",
        time_scale=0.1,
    )


def backwards(plan: RolloutPlan) -> RolloutPlan:
    """Its last step first."""
    return plan.model_copy(update={"steps": plan.steps[::-1]})


def artifacts_of(campaign: str) -> dict[str, str]:
    """What a person finds in the UI: key without the campaign's name to content, the newest of each."""
    newest_first = {"sort": "CREATED_DESC", "artifacts": {"key": {"like_": f"{campaign}%"}}, "limit": 200}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json=newest_first).json()
    return {a["key"].removeprefix(f"{campaign}-"): str(a["data"]) for a in reversed(found)}


def ledger(store: ObjectStore, target: Target) -> list[LedgerEntry]:
    return [store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(target)) if i.key.endswith(".json")]


def test_OR1_OR2_a_killed_campaign_resumes_and_ends_in_a_plan_that_waits(
    given: CampaignParams, bench: StubBench, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3, C2, V7, V12, OB2, S1: what helps is combined and measured, what refuses work is refused, nobody deploys."""
    from flows.closed_loop import run_campaign

    bench.dies_at = 2
    with pytest.raises(MemoryError):
        run_campaign(given)
    first = list(bench.pairs)
    assert len(first) == 2
    with monkeypatch.context() as bad:
        bad.setattr("tasks.campaign.steps.rollout_plan", lambda *a, **k: backwards(rollout_plan(*a, **k)))
        with pytest.raises(GateFailed, match="rollout plan") as stopped:
            run_campaign(given)
    assert "rising" in str(stopped.value)
    assert not store.exists(f"campaigns/{given.campaign}/plan.json"), "a plan that its gate refused was kept"
    assert not [e for e in ledger(store, given.target) if e.kind == "plan"]
    measured = len(bench.pairs)
    state = run_campaign(given)
    assert len(bench.pairs) == measured, "what was measured before the gate was measured again"
    again = bench.pairs[2:]
    assert not {c.config_hash() for c in first} & {c.config_hash() for c in again[:-1]}, "a finished trial ran again"

    verdict, plan = state.verdict, state.plan
    assert verdict is not None
    assert state.outcome is Outcome.PASS, "\n".join(
        f"{t.changes} {t.outcome_class.value}: {r.outcome.value} {r.text}"
        for t in verdict.trials
        for r in t.judgement.reasons
        if r.outcome is not Outcome.PASS
    )
    assert plan is not None
    classes = {next(iter(t.changes)): t.outcome_class for t in verdict.trials if t.kind == "single"}
    told = {t.trial_id + str(t.changes): [r.text for r in t.judgement.reasons] for t in verdict.trials}
    assert classes["enable_prefix_caching"] is OutcomeClass.EFFECTIVE
    assert classes["max_num_seqs"] is OutcomeClass.EFFECTIVE, told
    assert classes["max_model_len"] in {OutcomeClass.REGRESSION, OutcomeClass.SIDE_EFFECT}
    assert plan.changes == {"enable_prefix_caching": True, "max_num_seqs": 8}
    both = next(t for t in verdict.trials if t.kind == "combination")
    assert both.predicted_change_pct is not None
    assert verdict.synergy_pct is not None
    held_out = verdict.held_out
    assert held_out is not None
    assert held_out.sample_hash != both.sample_hash
    gain = held_out.comparison("throughput_per_gpu")
    assert gain is not None
    assert plan.expected_gain_pct == pytest.approx((gain.change_pct or 0) - 2.5)

    seen = artifacts_of(given.campaign)
    assert {"baseline", "bottleneck", "hypotheses", "trials"} <= set(seen)
    gates = [key for key in seen if key.startswith("gate-")]
    assert len(gates) >= 6, gates
    assert all('"passed": true' in seen[key] for key in gates), "a gate that passed says so"
    assert "duet" in seen["trials"]
    assert "max_model_len" in seen["trials"]
    assert "spread" in seen["baseline"]
    assert "Requests waiting:" in seen["bottleneck"]
    assert "worst case" in seen["hypotheses"]

    entries = ledger(store, given.target)
    trials = [e for e in entries if e.kind == "trial"]
    assert len(trials) == len(verdict.trials) + 1
    assert [e.outcome_class for e in entries if e.kind == "plan"] == ["waits for approval"]
    assert not store.exists(f"approvals/{plan.content_hash()}.json")
    refused = next(e for e in trials if e.knob == "max_model_len")
    assert "coverage" in refused.reason or "error_rate" in refused.reason


def test_H3_used_up_ideas_are_an_answer_and_not_a_fault(
    given: CampaignParams, bench: StubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.closed_loop import run_campaign

    told = Calibration(found=estimate((0.01, -0.01, 0.0)), planned_pairs=3)
    monkeypatch.setattr("tasks.sandbox.steps.calibrate", lambda *_: told)
    state = run_campaign(given.model_copy(update={"config": OLD}))
    assert state.outcome is Outcome.NO_DATA
    assert state.plan is None
    assert "the ideas are used up" in state.ended_because
    assert "the configuration is for e, installed is" in state.ended_because
    assert bench.pairs == []


def test_A3_a_held_out_sample_that_fails_its_gate_stops_the_campaign_before_anything_is_measured(
    given: CampaignParams, bench: StubBench
) -> None:
    from flows.closed_loop import run_campaign

    window = given.held_out_window
    assert window is not None
    short = window.model_copy(update={"end_s": window.start_s + 4.5})
    with pytest.raises(GateFailed, match="held-out") as stopped:
        run_campaign(given.model_copy(update={"held_out_window": short}))
    assert "rows" in str(stopped.value) or "requests" in str(stopped.value)
    assert bench.pairs == []
