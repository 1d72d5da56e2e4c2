"""A fault inside a flow, through the command line: one message, no traceback, exit code 2."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from deployments.environment import embedded_settings
from infra.store import ObjectStore
from tasks.canary.records import Approval
from tests.conftest import LocalStack
from tests.flows.test_campaign_flow import criteria, params
from tests.long.plans import put_plan
from tests.steps.test_command_line import ratchet

__all__ = ["criteria"]

pytestmark = [pytest.mark.flow, pytest.mark.stack]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with prefect_test_harness(server_startup_timeout=90):
        yield PREFECT_API_URL.value()


@pytest.fixture
def settings(stack: LocalStack, server: str, tmp_path: Path) -> dict[str, str]:
    """What README says to set: the object store and Prometheus, and no folder of production's."""
    names = embedded_settings(stack.state_dir, "sandbox")
    given = {k: v for k, v in names.items() if k.startswith(("RATCHET_S3_", "RATCHET_PROMETHEUS_"))}
    return {**given, "PREFECT_API_URL": server, "PREFECT_HOME": str(tmp_path / "prefect")}


def test_a_fault_in_a_flow_is_said_once_and_without_a_traceback(
    criteria: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    other = criteria.parent / "other.md"
    other.write_text(criteria.read_text())
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(params(other).model_dump(mode="json")))
    done = ratchet("campaign", "run", "--params", str(file), **settings)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert said.count("other.md is not committed") == 1, said
    assert "ratchet: " in done.stderr.splitlines()[-1]
    assert "not committed" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["rollout", "drill"])
def test_production_that_is_not_named_is_said_in_one_line(
    store: ObjectStore, settings: dict[str, str], command: str
) -> None:
    now_s = time.time()
    key, plan = put_plan(store, created_s=now_s)
    approval = Approval(
        plan_hash=plan.content_hash(),
        config_hash=plan.config_hash,
        decision="approve",
        by="Ada",
        at_s=now_s,
        expires_s=now_s + 600,
    )
    store.put_record_once(f"approvals/{plan.content_hash()}.json", approval)
    done = ratchet(command, key, **settings)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ratchet: setting RATCHET_PRODUCTION_STATE_DIR is missing")
    assert "ratchet stack up" in last
