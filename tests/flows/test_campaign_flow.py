"""The campaign's flow under Prefect's harness: what must stop it stops it, with one clear message."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from infra.errors import BadInput
from infra.lease import Lease, LeaseHeld
from infra.store import ObjectStore
from tasks.canary.records import CanaryVerdict, Phase, StepDecision
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Judgement, Outcome, Reason, Target, Window
from tasks.shared.stops import GateFailed, PreconditionFailed
from tests.conftest import LocalStack
from tests.flows.drills import put_drill
from tests.rules.serving_configs import serving_config

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.flow, pytest.mark.stack]


@pytest.fixture(scope="module", autouse=True)
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=90):
        yield


@pytest.fixture(autouse=True)
def settings(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployments.environment import embedded_settings

    for name, value in embedded_settings(stack.state_dir, "sandbox").items():
        if not name.startswith("PREFECT"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def criteria(tmp_path: Path) -> Path:
    file = tmp_path / "criteria.md"
    file.write_text((ROOT / "docs" / "perf-baseline-demo.md").read_text())
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return file


def params(criteria: Path, **changes: object) -> CampaignParams:
    name = uuid.uuid4().hex[:8]
    now_s = time.time()
    return CampaignParams.model_validate(
        {
            "campaign": f"t-{name}",
            "target": Target(model="m", pool=name),
            "criteria_path": str(criteria),
            "config": serving_config(max_num_seqs=2),
            "window": Window(start_s=now_s - 70, end_s=now_s),
            "traffic_prefix": f"traffic/{name}/",
            **changes,
        }
    )


def put_traffic(store: ObjectStore, given: CampaignParams, requests: int = 20) -> None:
    put_drill(store, given.target)
    lines = [
        json.dumps(
            {
                "request_id": f"r{i}",
                "conversation_id": f"c{i}",
                "t_epoch_s": given.window.start_s + 1 + i,
                "model": "m",
                "messages": [{"role": "user", "content": f"word {i}"}],
                "prompt_tokens": (20, 160, 300)[i % 3],
                "output_tokens": 8,
                "status": "ok",
                "http_status": 200,
                "finish_reason": "length",
            }
        )
        for i in range(requests)
    ]
    store.put_once(f"{given.traffic_prefix}part-1.jsonl.gz", gzip.compress("\n".join(lines).encode()))


def run(given: CampaignParams) -> object:
    from flows.closed_loop import run_campaign

    return run_campaign(given)


def test_C3_criteria_that_are_not_committed_start_nothing(criteria: Path) -> None:
    other = criteria.parent / "other.md"
    other.write_text(criteria.read_text())
    with pytest.raises(BadInput, match=r"other\.md is not committed"):
        run(params(other))


def test_P1_one_no_stops_the_campaign_with_its_answer(criteria: Path) -> None:
    with pytest.raises(PreconditionFailed) as stopped:
        run(params(criteria, production_shape="H100-80GB x8"))
    said = str(stopped.value)
    assert "H100-80GB x8" in said
    assert "drill" in said
    assert "traffic" in said


def test_A3_an_idle_production_does_not_pass_its_gate(criteria: Path, store: ObjectStore) -> None:
    given = params(criteria)
    put_traffic(store, given)
    with pytest.raises(GateFailed, match="baseline") as stopped:
        run(given)
    assert "throughput_per_gpu" in str(stopped.value)


def test_MS1_an_unreachable_prometheus_is_no_zero(
    criteria: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_PROMETHEUS_URL", "http://127.0.0.1:9")
    given = params(criteria)
    put_traffic(store, given)
    with pytest.raises(GateFailed) as stopped:
        run(given)
    said = str(stopped.value)
    assert "throughput_per_gpu: unknown (vllm:generation_tokens_total{" in said
    assert "failed: " in said
    assert "127.0.0.1" in said
    assert "port=9" in said


def test_OR5_two_campaigns_of_one_target_do_not_run_side_by_side(criteria: Path, store: ObjectStore) -> None:
    given = params(criteria)
    held = Lease.acquire(store, f"campaign/{given.target.key}", owner="another", ttl_s=60, now=time.time())
    with pytest.raises(LeaseHeld, match="another"):
        run(given)
    held.release()


def test_R1_a_rollout_hangs_up_its_timeline() -> None:
    from flows import publish

    decision = StepDecision(
        step=0,
        share=0.005,
        at_s=1_796_083_200.0,
        judgement=Judgement(
            outcome=Outcome.FAIL, reasons=(Reason(rule="error_rate", outcome=Outcome.FAIL, text="errors tenfold"),)
        ),
        action="roll_back",
        smallest_excludable_harm="a tenfold error rate",
    )
    verdict = CanaryVerdict(
        rollout_id=f"r-{uuid.uuid4().hex[:8]}",
        target=Target(model="m", pool="p"),
        judgement=decision.judgement,
        phase=Phase.ROLLED_BACK,
        decisions=(decision,),
    )

    @flow
    def hang_up() -> None:
        publish.canary(verdict)

    hang_up()
    with get_client(sync_client=True) as client:
        wanted = {"artifacts": {"key": {"any_": [f"{verdict.rollout_id}-canary"]}}}
        (found,) = client.request("POST", "/artifacts/filter", json=wanted).json()
    assert found["description"] == "Canary timeline: rolled back"
    for words in ("2026-12-01 00:00:00", "0.5%", "roll_back", "errors tenfold", "a tenfold error rate"):
        assert words in found["data"]
