"""`ratchet rollback` finds the switch that the rollouts use, and says so loudly when it does not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from deployments.environment import embedded_settings
from infra.store import ObjectStore
from infra.traffic.switch import EnvoySwitch
from tasks.canary import rollout as machine
from tasks.canary import storage
from tests.conftest import LocalStack
from tests.fakes.stub_llm import StubLLM, StubTiming
from tests.steps.test_command_line import ratchet
from tests.steps.test_rollout_ticks import Case, port_of, quiet_logger, stubs, switch

__all__ = ["quiet_logger", "stubs", "switch"]


@pytest.fixture
def settings(stack: LocalStack) -> dict[str, str]:
    """RATCHET_S3_* of the session's stack, in a bucket without rollouts; nothing that names a folder."""
    given = {k: v for k, v in embedded_settings(stack.state_dir, "sandbox").items() if k.startswith("RATCHET_S3_")}
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    boto3.client(
        "s3",
        endpoint_url=given["RATCHET_S3_ENDPOINT_URL"],
        aws_access_key_id=given["RATCHET_S3_ACCESS_KEY"],
        aws_secret_access_key=given["RATCHET_S3_SECRET_KEY"],
        region_name="us-east-1",
    ).create_bucket(Bucket=bucket)
    return {**given, "RATCHET_S3_BUCKET": bucket}


def store_of(settings: dict[str, str]) -> ObjectStore:
    return ObjectStore(
        settings["RATCHET_S3_ENDPOINT_URL"],
        settings["RATCHET_S3_BUCKET"],
        settings["RATCHET_S3_ACCESS_KEY"],
        settings["RATCHET_S3_SECRET_KEY"],
    )


@pytest.fixture
def serving(switch: EnvoySwitch) -> Iterator[EnvoySwitch]:
    """A canary that serves half of the traffic."""
    with StubLLM(StubTiming()) as canary:
        switch.set_endpoint("canary", "127.0.0.1", port_of(canary))
        switch.set_weight(0.5)
        yield switch
        switch.set_weight(0.0)


def test_a_rollout_under_way_without_its_switch_is_marked_and_fails_loudly(
    settings: dict[str, str], tmp_path: Path, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    case = Case(store_of(settings), switch, stubs)
    case.to_step()
    done = ratchet("rollback", cwd=tmp_path, **settings)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{case.plan.plan_id[:12]} is under way: the canary may still serve" in done.stderr
    assert "RATCHET_PRODUCTION_STATE_DIR" in done.stderr
    assert "Traceback" not in done.stderr
    rollout = storage.Rollout(case.store, case.key)
    assert machine.rolling_back(rollout.load(0.0))


def test_a_switch_beside_another_store_is_not_taken_for_the_rollout_s(
    settings: dict[str, str], tmp_path: Path, stack: LocalStack, switch: EnvoySwitch, stubs: dict[str, int]
) -> None:
    Case(store_of(settings), switch, stubs).to_step()
    elsewhere = {"RATCHET_STATE": str(stack.state_dir)}
    foreign = {
        **settings,
        "RATCHET_S3_ENDPOINT_URL": settings["RATCHET_S3_ENDPOINT_URL"].replace("127.0.0.1", "localhost"),
    }
    done = ratchet("rollback", cwd=tmp_path, **foreign, **elsewhere)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "lies in another stack's store: its canary may still serve" in done.stderr
    assert switch.weight() == 0


def test_the_folder_of_production_goes_before_the_embedded_one(
    settings: dict[str, str], tmp_path: Path, stack: LocalStack, serving: EnvoySwitch
) -> None:
    named = {"RATCHET_PRODUCTION_STATE_DIR": str(stack.state_dir), "RATCHET_STATE": str(tmp_path)}
    done = ratchet("rollback", cwd=tmp_path, **settings, **named)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"canary at weight 0 in {stack.state_dir}" in done.stdout.replace("\n", "")
    assert serving.weight() == 0


def test_nothing_to_roll_back_is_said_only_where_the_store_says_so(settings: dict[str, str], tmp_path: Path) -> None:
    done = ratchet("rollback", cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no rollout under way: nothing to roll back" in " ".join(done.stdout.split())
    for unknown in ({}, {**settings, "RATCHET_S3_ENDPOINT_URL": "http://127.0.0.1:9"}):
        done = ratchet("rollback", cwd=tmp_path, **unknown)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "the canary may still serve" in done.stderr
        assert "RATCHET_PRODUCTION_STATE_DIR" in done.stderr
