"""`deployments/prefect.yaml` with a real server and workers: bad input is named, a form approves, nothing waits."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import requests

from deployments.environment import Side, child_environment
from infra.stack.control import open_stack_store
from infra.store import ObjectStore
from tasks.canary.records import Approval, Phase, RolloutPlan, RolloutState
from tests.long.marks import ROOT, STATE, Checks, of_state, own_stack, python, wait_for
from tests.long.plans import put_criteria, put_plan

RUN_S = 90.0
POOLS: dict[str, Side] = {"sandbox": "sandbox", "production": "production"}


class Api:
    """What the UI does, over the server's REST interface."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        # SQLite says "locked" as a 503 when a worker writes at the same moment; the UI asks again, and so does this.
        for _ in range(10):
            answer = requests.request(method, f"{self._url}{path}", json=body, timeout=30)
            if answer.status_code != 503:
                break
            time.sleep(1.0)
        return answer

    def start(self, name: str, parameters: dict[str, Any]) -> requests.Response:
        found = self.call("GET", f"/deployments/name/{name}").json()
        return self.call("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})

    def started(self, name: str, parameters: dict[str, Any]) -> str:
        answer = self.start(name, parameters)
        answer.raise_for_status()
        return str(answer.json()["id"])

    def state(self, run: str) -> dict[str, Any]:
        found = self.call("GET", f"/flow_runs/{run}").json()["state"]
        return {"name": found["name"], "message": found["message"] or ""}

    def wait(self, run: str, *names: str) -> dict[str, Any]:
        wait_for(f"flow run {run} {'/'.join(names)}", lambda: self.state(run)["name"] in names, RUN_S, 0.5)
        return self.state(run)

    def answer(self, run: str, given: dict[str, Any] | None) -> str:
        body = {} if given is None else {"run_input": given}
        return str(self.call("POST", f"/flow_runs/{run}/resume", body).json()["status"])

    def shown(self, run: str) -> str:
        found = self.call("POST", f"/flow_runs/{run}/input/filter", {"prefix": "suspend", "limit": 10}).json()
        return " ".join(str(i["value"]) for i in found)


def prefect(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python("prefect", "--no-prompt", *arguments),
        cwd=ROOT,
        env={**child_environment(state, "sandbox"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def workers(state: Path) -> Iterator[dict[str, psutil.Process]]:
    """One process worker a pool, each with its side's settings alone."""
    children = {}
    try:
        for pool, side in POOLS.items():
            with (state / "logs" / f"worker-{pool}.log").open("w") as log:
                children[pool] = subprocess.Popen(
                    python("prefect", "worker", "start", "--pool", pool),
                    cwd=ROOT,
                    env={
                        **child_environment(state, side),
                        "PYTHONPATH": str(ROOT),
                        "PREFECT_WORKER_QUERY_SECONDS": "1",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        yield {pool: psutil.Process(child.pid) for pool, child in children.items()}
    finally:
        for child in children.values():
            child.send_signal(signal.SIGINT)
        for child in children.values():
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def prefect_deployments() -> dict[str, Any]:
    """Deploys, starts workers, and plays the person at the UI."""
    check = Checks()
    started_s = time.monotonic()
    with own_stack("deployments", prefect=True) as state:
        for pool in POOLS:
            prefect(state, "work-pool", "create", pool, "--type", "process", "--overwrite")
        done = prefect(state, "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        check("prefect deploy", done.returncode == 0, done.stdout[-500:] + done.stderr[-500:])
        store = open_stack_store(state)
        put_criteria(store)
        api = Api(child_environment(state, "sandbox")["PREFECT_API_URL"])
        with workers(state) as running:
            check("the sandbox's worker has no right to production", not _knows_production(running["sandbox"]))
            check("production's worker has it", _knows_production(running["production"]))
            _approvals(api, store, running["sandbox"], check)
            _ticks(api, store, check)
            _campaigns(api, check)
    left = of_state(STATE / "deployments")
    check("nothing is left", not left, left)
    return check.result(f"deployed, approved and refused by a form, {time.monotonic() - started_s:.0f} s")


def _knows_production(process: psutil.Process) -> bool:
    return any(name.startswith("RATCHET_PRODUCTION_") for name in process.environ())


def _approval(store: ObjectStore, plan: RolloutPlan) -> Approval | None:
    key = f"approvals/{plan.content_hash()}.json"
    return store.get_record(key, Approval) if store.exists(key) else None


def _approvals(api: Api, store: ObjectStore, worker: psutil.Process, check: Checks) -> None:
    key, plan = put_plan(store, created_s=time.time() - 20)
    right = {"decision": "approve", "config_hash_first_8": plan.config_hash[:8], "by": "Ada"}
    run = api.started("approve/approve", {"plan_key": key})
    wrong = api.started("approve/approve", {"plan_key": key})
    api.wait(run, "Suspended", "Failed", "Crashed")
    api.wait(wrong, "Suspended", "Failed", "Crashed")
    wait_for("no process waits for the person", lambda: not worker.children(recursive=True), 30)
    check("the form shows the configuration", plan.config_hash in api.shown(run), api.shown(run))
    for what, given in (
        ("no answer", None),
        ("an empty answer", {}),
        ("another word", {**right, "decision": "yes"}),
        ("nobody's name", {**right, "by": ""}),
    ):
        said = api.answer(run, given)
        check(f"{what} is refused", (said, api.state(run)["name"]) == ("REJECT", "Suspended"), said)
    check("a wrong hash is taken", api.answer(wrong, {**right, "config_hash_first_8": "0" * 8}) == "ACCEPT")
    ended = api.wait(wrong, "Completed", "Failed", "Crashed")
    check("and fails the run", ended["name"] == "Failed" and "Nothing was decided" in ended["message"], ended)
    check("nothing was approved until now", _approval(store, plan) is None)
    check("the right answer is taken", api.answer(run, right) == "ACCEPT")
    ended = api.wait(run, "Completed", "Failed", "Crashed")
    check("and completes the run", ended["name"] == "Completed", ended)
    made = _approval(store, plan)
    check(
        "the approval lies in S3",
        made is not None and (made.decision, made.by, made.config_hash) == ("approve", "Ada", plan.config_hash),
        made,
    )
    again = api.started("approve/approve", {"plan_key": key})
    api.wait(again, "Suspended", "Failed", "Crashed")
    api.answer(again, {**right, "decision": "reject", "by": "Bob"})
    ended = api.wait(again, "Completed", "Failed", "Crashed")
    check("a second answer changes nothing", "decided before" in ended["message"], ended)
    unknown = api.started("approve/approve", {"plan_key": "campaigns/nowhere/plan.json"})
    ended = api.wait(unknown, "Suspended", "Failed", "Crashed")
    check("an unknown plan is named", ended["name"] == "Failed" and "campaigns/nowhere" in ended["message"], ended)


def _ticks(api: Api, store: ObjectStore, check: Checks) -> None:
    said = api.start("rollout-tick/rollout-tick", {"params": {"plan_ky": "x"}})
    check("a misspelt key starts no tick", said.status_code >= 400 and "plan_ky" in said.text, said.text)
    unknown = api.started("rollout-tick/rollout-tick", {"params": {"plan_key": "campaigns/nowhere/plan.json"}})
    ended = api.wait(unknown, "Completed", "Failed", "Crashed")
    check("a tick names its unknown plan", ended["name"] == "Failed" and "nowhere" in ended["message"], ended)
    key, plan = put_plan(store, created_s=time.time() - 10)
    run = api.started("rollout-tick/rollout-tick", {"params": {"plan_key": key}})
    ended = api.wait(run, "Completed", "Failed", "Crashed")
    check("a tick of a plan that waits ends well", ended["name"] == "Completed", ended)
    state_key = f"rollouts/{plan.target.key}/{plan.plan_id}/state.json"
    state = store.get_record(state_key, RolloutState) if store.exists(state_key) else None
    check(
        "and moves nothing",
        state is not None and state.phase is Phase.PREPARED and "waits for approval" in state.reason,
        state and (state.phase, state.reason),
    )


def _campaigns(api: Api, check: Checks) -> None:
    said = api.start("campaign/manual", {})
    check("no parameters start no campaign", said.status_code >= 400 and "params" in said.text, said.text)
    said = api.start("campaign/manual", {"params": {"campaign": "x"}})
    check("a missing target is named", said.status_code >= 400 and "target" in said.text, said.text)
    given = {
        "campaign": "manual-1",
        "target": {"model": "m", "pool": "p"},
        "criteria_path": "docs/nowhere.md",
        "config": {
            "engine_build": "e",
            "model": {"name": "m", "weights_sha256": "1" * 64, "tokenizer_sha256": "2" * 64},
            "args": {},
        },
        "window": {"start_s": 20.0, "end_s": 90.0},
        "traffic_prefix": "traffic/m",
    }
    backwards = api.started("campaign/manual", {"params": {**given, "window": {"start_s": 90.0, "end_s": 20.0}}})
    ended = api.wait(backwards, "Completed", "Failed", "Crashed")
    check("a window that ends first is named", ended["name"] == "Failed" and "window" in ended["message"], ended)
    unpinned = api.started("campaign/manual", {"params": given})
    ended = api.wait(unpinned, "Completed", "Failed", "Crashed")
    check("criteria that are not there are named", "nowhere.md" in ended["message"], ended)
