"""A rollout on real vLLM under real traffic, killed with SIGKILL in a step and again in the promotion."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from deployments.demo.load import Load
from deployments.demo.production import SERVED_MODEL, Users, demo_target, old_configuration
from deployments.environment import child_environment, embedded_settings
from infra.engine import processes
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.store import ObjectStore
from infra.traffic.fleet import LocalFleet
from infra.traffic.generator import TrafficOptions
from infra.traffic.shape import TrafficShape
from infra.traffic.switch import EnvoySwitch
from tasks.canary.approval import decide
from tasks.canary.records import Phase, RolloutPlan, RolloutState
from tests.long.marks import ROOT, STATE, Checks, is_engine, of_state, own_stack, python, wait_for
from tests.long.plans import put_rollout

TTL_S = 10.0
GRACE_S = 5.0
PHASE_S = 240.0
RATE_PER_S = 0.4
ALONE_S = 1.0


class FewUsers(Users):
    """Traffic that one replica of the old configuration serves easily, also beside two others that start: what fails
    then failed because of the kill."""

    def _options(
        self, shape: TrafficShape, window_s: float, seed: int, phase: int, windows: int | None
    ) -> TrafficOptions:
        few = shape.model_copy(update={"recorded_rate_per_s": RATE_PER_S})
        return super()._options(few, window_s, seed, phase, windows)


class Drill:
    """One stack with a stable replica, an approved plan, and what can be seen of them from outside."""

    def __init__(self, state: Path, check: Checks) -> None:
        self.state, self.check = state, check
        self.store: ObjectStore = open_stack_store(state)
        self.target = demo_target(f"kill-{time.time_ns() // 1_000_000}")
        self.old = old_configuration()
        self.new = self.old.with_arg("enable_prefix_caching", True)
        self.switch = EnvoySwitch.of_stack(state)
        self.fleet = LocalFleet(ProductionSettings(state_dir=state))
        self.users = FewUsers(state, self.target, Load(ALONE_S))
        self.log = state / "logs" / f"{self.target.pool}.log"
        self.key = ""
        self.plan: RolloutPlan | None = None

    def prepare(self) -> None:
        """Weight 0, no canary, stable on the old configuration, the plan approved."""
        self.switch.set_weight(0.0)
        self.fleet.retire("canary")
        self.fleet.ensure("stable", self.old)
        self.key, self.plan = put_rollout(self.store, self.target, self.old, self.new)
        decide(self.plan, "approve", "the kill drill")

    def rollout(self) -> RolloutState:
        assert self.plan is not None
        return self.store.get_record(f"rollouts/{self.target.key}/{self.plan.plan_id}/state.json", RolloutState)

    def phase(self) -> Phase | None:
        assert self.plan is not None
        key = f"rollouts/{self.target.key}/{self.plan.plan_id}/state.json"
        return self.store.get_record(key, RolloutState).phase if self.store.exists(key) else None

    def follow(self) -> subprocess.Popen[bytes]:
        """`ratchet rollout --follow` in a process of its own."""
        with self.log.open("ab") as out:
            return subprocess.Popen(
                python(
                    "deployments.cli", "rollout", self.key, "--follow", "--lease-ttl-s", f"{TTL_S:g}", "--tick-s", "1"
                ),
                cwd=ROOT,
                env=child_environment(self.state, "production"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @contextlib.contextmanager
    def guardian(self) -> Iterator[None]:
        with (self.state / "logs" / "guardian.log").open("ab") as out:
            child = subprocess.Popen(
                python(
                    "infra.traffic.guardian", "--state", self.state, "--target", self.target.key, "--ttl", f"{TTL_S:g}"
                ),
                cwd=ROOT,
                env=child_environment(self.state, "production"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
        finally:
            child.terminate()
            child.wait(timeout=30)

    def kill_in(self, follow: subprocess.Popen[bytes], phase: Phase, share_above: float, wait_s: float) -> float:
        """SIGKILL in a phase while the canary has traffic; seconds until all of it is on stable again."""

        def there() -> bool:
            if follow.poll() is not None:
                raise TimeoutError(
                    f"the rollout ended with {follow.returncode} before it was {phase.value}: {self.log}"
                )
            return self.phase() is phase and self.switch.weight() > share_above

        wait_for(f"phase {phase.value} with traffic on the canary", there, PHASE_S, 0.1)
        time.sleep(wait_s)
        check, moment = self.check, self.phase()
        follow.send_signal(signal.SIGKILL)
        follow.wait()
        killed_s = time.monotonic()
        check(f"killed in {phase.value}", moment is phase and self.phase() is phase, moment)
        weight = self.switch.weight()
        check(f"the kill in {phase.value} left traffic on the canary", weight > share_above, weight)
        try:
            wait_for("weight 0", lambda: self.switch.weight() == 0.0, TTL_S + GRACE_S, 0.05)
        except TimeoutError as error:
            check(f"weight 0 after the kill in {phase.value}", False, error)
        took_s = time.monotonic() - killed_s
        arm, status = self.ask()
        check(f"stable serves after the kill in {phase.value}", (arm, status) == ("stable", 200), (arm, status))
        return took_s

    def ask(self) -> tuple[str, int]:
        """The arm that answers one request, and its status; nothing and 0 where no answer came."""
        try:
            answer = requests.post(
                f"{stack_addresses(StackPaths(self.state)).envoy}/v1/completions",
                json={"model": SERVED_MODEL, "prompt": "1 2 3", "max_tokens": 2},
                timeout=90,
            )
        except requests.RequestException:
            return "", 0
        return answer.headers.get("x-ratchet-arm", ""), answer.status_code

    def starts(self, role: str) -> list[str]:
        """One entry for each engine that was ever started for the role, by its configuration."""
        return sorted(p.name.split("-")[1] for p in (self.state / "logs").glob(f"{role}-*-*.log"))

    def answers(self) -> Counter[str]:
        """How the users' requests ended, from the gateway's log in S3."""
        found: Counter[str] = Counter()
        for item in self.store.list(self.users.prefix):
            for line in gzip.decompress(self.store.get(item.key)).splitlines():
                record = json.loads(line)
                found[record["status"] + ("" if record["status"] == "ok" else f" {record.get('error', '')[:80]}")] += 1
        return found


def killed_in_the_rollout() -> dict[str, Any]:
    """Killed in STEP, killed in PROMOTING, and each time gone on with by the next process, without a person."""
    check = Checks()
    started_s = time.monotonic()
    with own_stack("rollout", prefect=True) as state, _settings(state):
        for old in (state / "logs").glob("*-*-*.log"):
            old.unlink()
        drill = Drill(state, check)
        drill.prepare()
        with drill.guardian():
            step_s, promoting_s, code = _under_traffic(drill)
        end = drill.rollout()
        check("verifying at the end, and no person was needed", end.phase is Phase.VERIFYING, (end.phase, end.reason))
        check("which the command says with exit code 3", code == 3, code)
        check("all traffic on stable", drill.switch.weight() == 0.0, drill.switch.weight())
        check("stable serves the new configuration", drill.fleet.serves("stable", drill.new))
        check("no canary is left", not drill.fleet.alive("canary"))
        engines = processes.of_owner(f"ratchet-production:{state.absolute()}")
        ids = {p.environ().get(processes.ID_VARIABLE) for p in engines}
        check("one engine is left, stable's", len(ids) == 1, ids)
        new, old_hash = drill.new.config_hash()[:8], drill.old.config_hash()[:8]
        check("the canary was started once", drill.starts("canary") == [new], drill.starts("canary"))
        # The engine that the kill in the promotion interrupted is no replica: it is ended, and started anew.
        stable = Counter(drill.starts("stable"))
        check("stable was started once as it was", stable[old_hash] == 1, stable)
        check("and at most once more than the kill forced", stable[new] in (1, 2), stable)
        steps = [d.step for d in end.decisions if d.action == "advance"]
        check("each step was passed once", steps == [0, 1], steps)
        answers = drill.answers()
        failed = sum(n for status, n in answers.items() if status != "ok")
        check("the users' requests were logged", answers["ok"] >= 15, answers)
        check("none of them failed", failed == 0, answers)
        engines_before_end = [p for p in of_state(state) if is_engine(p)]
        check("something was there to be ended", bool(engines_before_end))
    left = of_state(STATE / "rollout")
    check("nothing is left", not left, [" ".join(p.cmdline())[:120] for p in left])
    return check.result(
        f"weight 0 after {step_s:.1f} s (killed in a step) and {promoting_s:.1f} s (killed in the promotion), lease "
        f"{TTL_S:.0f} s; {answers['ok']} requests, {failed} failed; {time.monotonic() - started_s:.0f} s"
    )


def _under_traffic(drill: Drill) -> tuple[float, float, int]:
    with drill.users.busy(7):
        follow = drill.follow()
        try:
            step_s = drill.kill_in(follow, Phase.STEP, 0.0, wait_s=1.0)
            drill.check("the canary outlived the kill", drill.fleet.serves("canary", drill.new))
            follow = drill.follow()
            promoting_s = drill.kill_in(follow, Phase.PROMOTING, 0.99, wait_s=3.0)
            follow = drill.follow()
            code = follow.wait(timeout=PHASE_S)
        finally:
            if follow.poll() is None:
                follow.terminate()
                follow.wait(timeout=60)
    return step_s, promoting_s, code


@contextlib.contextmanager
def _settings(state: Path) -> Iterator[None]:
    """The sandbox's settings of this stack in this process, for its lifetime."""
    before = dict(os.environ)
    os.environ.update(embedded_settings(state, "sandbox"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
