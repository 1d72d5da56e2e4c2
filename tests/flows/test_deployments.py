"""`deployments/prefect.yaml` against a real Prefect server: what is deployed can be started, and a plan is approved by
a typed answer alone. The same with workers is `make verify`'s item prefect-deployments."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness
from prefect.utilities.importtools import import_object

from infra.store import ObjectStore
from tasks.canary.records import Approval, RolloutPlan
from tests.conftest import LocalStack
from tests.long.marks import python
from tests.long.plans import put_criteria, put_plan

ROOT = Path(__file__).parents[2]
NAMES = ("campaign/nightly", "campaign/manual", "rollout-tick/rollout-tick", "approve/approve")
pytestmark = [pytest.mark.flow, pytest.mark.stack]


@pytest.fixture(scope="module")
def deployed() -> Iterator[dict[str, DeploymentResponse]]:
    """Everything of prefect.yaml on a server of its own."""
    with prefect_test_harness(server_startup_timeout=90), get_client(sync_client=True) as client:
        for pool in ("sandbox", "production"):
            client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        done = subprocess.run(
            python("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"),
            cwd=ROOT,
            env={**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value(), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield {name: client.read_deployment_by_name(name) for name in NAMES}


@pytest.fixture(autouse=True)
def settings(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployments.environment import embedded_settings

    for name, value in embedded_settings(stack.state_dir, "sandbox").items():
        if not name.startswith("PREFECT"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def plan(store: ObjectStore) -> tuple[str, RolloutPlan]:
    put_criteria(store)
    return put_plan(store, created_s=time.time())


def approval_of(store: ObjectStore, plan: RolloutPlan) -> Approval | None:
    key = f"approvals/{plan.content_hash()}.json"
    return store.get_record(key, Approval) if store.exists(key) else None


class Form:
    """A run of `approve` as a worker makes it, without the worker."""

    def __init__(self, deployment: DeploymentResponse, plan_key: str) -> None:
        self._flow = import_object(str(deployment.entrypoint))
        with get_client(sync_client=True) as client:
            self.id = client.create_flow_run_from_deployment(deployment.id, parameters={"plan_key": plan_key}).id
        self.go_on()

    def run(self) -> FlowRun:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(self.id)

    def go_on(self) -> None:
        run = self.run()
        with pytest.MonkeyPatch.context() as patched, suppress(Pause):
            patched.setenv("PREFECT__FLOW_RUN_ID", str(self.id))
            run_flow(self._flow, flow_run=run, parameters=dict(run.parameters), return_type="state")

    def answer(self, given: dict[str, Any]) -> str:
        with get_client(sync_client=True) as client:
            return str(client.resume_flow_run(UUID(str(self.id)), run_input=given).status.value)

    def state(self) -> str:
        state = self.run().state
        return "" if state is None else str(state.name)


@pytest.mark.parametrize("name", NAMES)
def test_A2_parameters_are_known_to_the_server_before_a_worker_runs(
    deployed: dict[str, DeploymentResponse], name: str
) -> None:
    found = deployed[name]
    assert found.enforce_parameter_schema
    schema = found.parameter_openapi_schema
    assert schema["required"] == (["plan_key"] if name.startswith("approve") else ["params"])
    if "params" in schema["required"]:
        record = schema["definitions"][schema["properties"]["params"]["$ref"].rsplit("/", 1)[-1]]
        assert record["additionalProperties"] is False  # a misspelt key is refused, not ignored
    assert found.pull_steps and "set_working_directory" in next(iter(found.pull_steps[0]))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_deployment_hands_over_as_JSON_reaches_the_flow_as_its_record(
    deployed: dict[str, DeploymentResponse], name: str
) -> None:
    entry = import_object(str(deployed[name].entrypoint))
    assert entry.name == name.split("/", maxsplit=1)[0]
    assert entry.should_validate_parameters


def test_S1_a_typed_answer_approves_exactly_this_plan(
    deployed: dict[str, DeploymentResponse], store: ObjectStore, plan: tuple[str, RolloutPlan]
) -> None:
    key, made = plan
    form = Form(deployed["approve/approve"], key)
    assert form.state() == "Suspended"
    assert approval_of(store, made) is None
    answer = {"decision": "approve", "config_hash_first_8": made.config_hash[:8], "by": "Ada"}
    assert form.answer(answer) == "ACCEPT"
    form.go_on()
    assert form.state() == "Completed"
    found = approval_of(store, made)
    assert found is not None
    assert (found.decision, found.by, found.config_hash) == ("approve", "Ada", made.config_hash)


def test_S1_an_empty_or_a_wrong_answer_approves_nothing(
    deployed: dict[str, DeploymentResponse], store: ObjectStore, plan: tuple[str, RolloutPlan]
) -> None:
    key, made = plan
    form = Form(deployed["approve/approve"], key)
    whole = {"decision": "approve", "config_hash_first_8": made.config_hash[:8], "by": "Ada"}
    bad: list[dict[str, Any]] = [{}, {**whole, "decision": "yes"}, {**whole, "by": ""}, {**whole, "more": 1}]
    bad += [{k: v for k, v in whole.items() if k != left_out} for left_out in whole]
    for given in bad:
        assert form.answer(given) == "REJECT", given
        assert form.state() == "Suspended"
    assert form.answer({**whole, "config_hash_first_8": "00000000"}) == "ACCEPT"  # the flow knows the hash
    form.go_on()
    assert form.state() == "Failed"
    assert approval_of(store, made) is None
