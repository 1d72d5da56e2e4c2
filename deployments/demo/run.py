"""`ratchet demo`: the same campaign and the same ticks that production runs, one after another, on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deployments.demo.children import end_leftovers, marked_environment, run_side
from deployments.demo.claim import claimed, unfinished
from deployments.demo.load import Load, seconds_alone
from deployments.demo.production import SERVED_MODEL, Users, demo_target, old_configuration
from deployments.demo.progress import Progress
from deployments.environment import embedded_settings
from deployments.ledger import all_entries
from deployments.report import words
from deployments.report.figures import figures
from deployments.report.html import render, write_text_atomically
from deployments.report.story import load_story
from infra.engine.environment import home
from infra.errors import BadInput
from infra.revision import committed_file
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store, stack_down, stack_up
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.traffic.fleet import LocalFleet, retire_everything
from infra.traffic.switch import EnvoySwitch
from tasks.baseline.records import BaselineReport
from tasks.canary.approval import decide, load_plan
from tasks.canary.drill import rehearse
from tasks.canary.records import RolloutState
from tasks.shared.criteria import parse_criteria
from tasks.shared.ledger import rejected_markdown
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Window

ROOT = Path(__file__).resolve().parents[2]
CRITERIA = ROOT / "docs" / "perf-baseline-demo.md"
CAMPAIGN_TIMEOUT_S = 4 * 3600.0
ROLLOUT_TIMEOUT_S = 3600.0


def run_demo(state: Path, *, seed: int, json_file: Path | None, out_file: Path | None, keep: bool) -> int:
    """The whole loop; 0 when a change was adopted, 1 when it was refused or rolled back, 3 when nothing was decided."""
    out = Console(force_terminal=sys.stdout.isatty(), soft_wrap=True)
    if not home().is_complete():
        raise BadInput("the engine's environment is not set up", remedy="Run `make engine`, or `make demo`")
    criteria = parse_criteria(committed_file(CRITERIA).text, origin=CRITERIA.name)
    if not criteria.demo_policy_approves:
        raise BadInput(
            f"{CRITERIA.name} lets no demo policy approve",
            remedy="Without `demo_policy_approves: true` a person decides: use `ratchet campaign run`",
        )
    out.print(
        "The whole loop on this machine: production with old settings, a campaign that looks for better ones,\n"
        "a canary, and a report. It measures less than production would; the report says what."
    )
    progress = Progress(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with cleaned(state, keep):
            campaign = f"demo-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
            return _Demo(state, out, progress, seed, campaign).run(
                json_file, out_file or state / "reports" / f"{campaign}.html"
            )
    except KeyboardInterrupt:
        out.print("interrupted; everything was stopped, the next demo starts clean")
        return 130


@contextlib.contextmanager
def cleaned(state: Path, keep: bool) -> Iterator[None]:
    """Nothing of an earlier demo is left before, and nothing of this one after.

    Raises:
        BadInput: another demo runs in this folder, or something that no demo started.
    """
    state.mkdir(parents=True, exist_ok=True)
    with claimed(state):
        end_leftovers(state)
        retire_everything(state)
        try:
            yield
        finally:
            end_leftovers(state)
            if not keep:
                retire_everything(state)
                stack_down(state)
            unfinished(state).unlink(missing_ok=True)  # what is kept is no demo's any more


class _Demo:
    def __init__(self, state: Path, out: Console, progress: Progress, seed: int, campaign: str) -> None:
        self.state, self.out, self.progress, self.seed, self.campaign = state, out, progress, seed, campaign
        self.say = progress.say
        self.target = demo_target(campaign)
        self.logs = state / "logs" / campaign

    def run(self, json_file: Path | None, report: Path) -> int:
        self.progress.part("stack and production")
        config = old_configuration()
        stack_up(self.state)
        self.say("S3, Prometheus, Envoy and the Prefect server answer")
        os.environ.update(embedded_settings(self.state, "sandbox"))
        fleet, switch = LocalFleet(ProductionSettings(state_dir=self.state)), EnvoySwitch.of_stack(self.state)
        switch.set_weight(0.0)
        fleet.retire("canary")
        fleet.ensure("stable", config)
        self.say(
            "stable serves with settings carried over from an old version: "
            + ", ".join(
                f"{k}={v}"
                for k, v in config.args.items()
                if k in ("max_num_seqs", "enable_prefix_caching", "max_model_len", "block_size")
            )
        )
        load = self._sized_load()
        self.progress.stretch(load)
        users = Users(self.state, self.target, load)
        self.progress.part("drill of the switch")
        with users.busy(self.seed * 1000 + 900):
            drilled = rehearse(open_stack_store(self.state), self.target, switch, fleet)
        self.say(f"switch back to stable in force after {drilled.in_force_ms:.0f} ms under traffic")
        self.progress.part("traffic before")
        played = [users.play(phase, self.seed * 1000 + phase) for phase in users.phases]
        before = Window(start_s=played[0].window.start_s, end_s=played[-1].window.end_s)
        self.say(f"{before.end_s - before.start_s:.0f} s of production traffic are logged in S3")
        time.sleep(2)
        self.progress.part("campaign")
        params = CampaignParams(
            campaign=self.campaign,
            target=self.target,
            criteria_path=str(CRITERIA),
            config=config,
            window=before,
            sample_window=played[0].recorded,
            held_out_window=played[1].recorded,
            traffic_prefix=users.prefix,
            seed=self.seed,
        )
        file = self.logs / "params.json"
        write_text_atomically(file, params.model_dump_json(indent=1))
        code = run_side(
            self.state,
            "sandbox",
            ["campaign", "run", "--params", str(file)],
            self.logs / "campaign.log",
            self._say_of_the_campaign,
            timeout_s=CAMPAIGN_TIMEOUT_S,
            accept=(0, 1, 3),
        )
        drill_ms: float | None = None
        if code == 0:
            drill_ms = self._roll_out(users, fleet)
        self.progress.part("report")
        return self._report(json_file, report, drill_ms, code)

    def _sized_load(self) -> Load:
        load = Load(seconds_alone(f"{stack_addresses(StackPaths(self.state)).envoy}/v1", SERVED_MODEL))
        self.say(
            f"a request alone takes {load.alone_s:.2f} s here; users ask {load.shape.recorded_rate_per_s:.2f} times a "
            f"second, and {load.shape.peak_rate_per_s:.1f} at the peak"
        )
        return load

    def _say_of_the_campaign(self, text: str) -> None:
        """A line of the campaign; from its A/A on, the time left is the campaign's own."""
        store, key = open_stack_store(self.state), f"campaigns/{self.campaign}/baseline.json"
        if not self.progress.knows("campaign") and store.exists(key):
            self.progress.expect("campaign", store.get_record(key, BaselineReport).calibration.campaign_s)
        self.say(text)

    def _roll_out(self, users: Users, fleet: LocalFleet) -> float | None:
        self.progress.part("approval")
        key = f"campaigns/{self.campaign}/plan.json"
        plan = load_plan(key)
        approval = decide(plan, "approve", "demo policy")
        self.say(
            f"plan {plan.plan_id[:12]} ({_changes(plan.changes)}, expected {plan.expected_gain_pct:+.1f} %) "
            f"approved by [bold]{approval.by}[/bold]; outside the demo a person decides"
        )
        self.progress.part("canary")
        guardian = subprocess.Popen(
            [sys.executable, "-m", "infra.traffic.guardian", "--state", str(self.state), "--target", self.target.key],
            env=marked_environment(self.state, "production"),
            stdin=subprocess.DEVNULL,
            stdout=(self.logs / "guardian.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        drill_file = self.logs / "drill.json"
        try:
            with users.busy(self.seed * 1000 + 950):
                run_side(
                    self.state,
                    "production",
                    ["drill", key, "--json", str(drill_file)],
                    self.logs / "rollout.log",
                    self.say,
                    timeout_s=ROLLOUT_TIMEOUT_S,
                )
                run_side(
                    self.state,
                    "production",
                    ["rollout", key, "--follow", "--lease-ttl-s", "10"],
                    self.logs / "rollout.log",
                    self.say,
                    timeout_s=ROLLOUT_TIMEOUT_S,
                    accept=(0, 1, 3),
                )
            folder = f"rollouts/{self.target.key}/{plan.plan_id}/state.json"
            state = open_stack_store(self.state).get_record(folder, RolloutState)
            if state.phase.value == "verifying":
                self.progress.part("traffic after")
                played = [users.play(phase, self.seed * 1000 + 500 + phase) for phase in users.phases]
                time.sleep(2)
                run_side(
                    self.state,
                    "production",
                    [
                        "rollout",
                        key,
                        "--lease-ttl-s",
                        "10",
                        "--verify-from-s",
                        repr(played[0].window.start_s),
                        "--verify-to-s",
                        repr(played[-1].window.end_s),
                    ],
                    self.logs / "rollout.log",
                    self.say,
                    timeout_s=ROLLOUT_TIMEOUT_S,
                    accept=(0, 1, 3),
                )
        finally:
            guardian.terminate()
            guardian.wait()
        drill: dict[str, Any] = json.loads(drill_file.read_text())
        return float(drill["decision_to_last_request_ms"])

    def _report(self, json_file: Path | None, report: Path, drill_ms: float | None, code: int) -> int:
        store = open_stack_store(self.state)
        story = load_story(store, self.campaign)
        write_text_atomically(report, render(store, story, seed=self.seed, drill_ms=drill_ms))
        data = figures(story, seed=self.seed, drill_ms=drill_ms)
        self.progress.close()
        data["part_seconds"] = self.progress.seconds
        if json_file is not None:
            write_text_atomically(json_file, json.dumps(data, indent=1) + "\n")
        write_text_atomically(self.state / "rejected-hypotheses.md", rejected_markdown(e for _, e in all_entries()))
        show(self.out, data, report, words.subtitle(story))
        if code != 0:
            return code
        return 0 if data["adopted"] else 1


def _changes(changes: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in changes.items())


def why_nothing(data: dict[str, Any], subtitle: str) -> str:
    """Why the demo adopted nothing, and what to do about it, in plain words."""
    classes = {row["class"] for row in data["hypotheses"]}
    if data["proven"]:
        todo = "Read the rollout's decisions in the report; then run `make demo` again."
    elif "unstable" in classes:
        todo = "The machine was too unquiet to tell. End what else runs on it and run `make demo` again."
    elif not classes - {"invalid configuration", "infeasible", "not run", "NO_DATA"}:
        todo = "No change could be measured. Read the engine's last words in the report, then run `make demo` again."
    else:
        todo = "The rules refused what was measured. The report says which rule spoke for each change."
    return f"{subtitle} {todo}"


def show(out: Console, data: dict[str, Any], report: Path, subtitle: str) -> None:
    """The end of the demo as a person reads it."""

    def number(value: float | None, unit: str = "") -> str:
        return "not measured" if value is None else f"{value:,.1f}{unit}"

    table = Table("production, from Prometheus", "before", "after", title="Before and after")
    for metric, before in data["production"]["before"].items():
        table.add_row(
            f"{metric} ({data['production']['units'][metric]})",
            number(before),
            number(data["production"]["after"].get(metric)),
        )
    out.print(table)
    tried = Table("hypothesis", "source", "class", "throughput", title="Hypotheses")
    for row in data["hypotheses"]:
        tried.add_row(
            f"{row['knob']}: {row['from']} -> {row['to']}",
            row["source"],
            row["class"],
            number(row["throughput_change_pct"], " %"),
        )
    out.print(tried)
    for refused in data["refused_by_guard"]:
        tempting = f" although {'; '.join(refused['tempting'])}" if refused["tempting"] else ""
        out.print(f"refused: {_changes(refused['changes'])}{tempting}: {refused['broken_guards'][0]}", highlight=False)
    out.print(f"adopted: {_changes(data['adopted']) if data['adopted'] else 'nothing'}", highlight=False)
    if not data["adopted"]:
        out.print(why_nothing(data, subtitle), highlight=False)
    if (share := data["measuring_share_pct"]) is not None:
        out.print(f"{share:.0f} % of the campaign's time went to measuring", highlight=False)
    out.print(
        f"sandbox predicted {number(data['sandbox_prediction_pct'], ' %')}, production answered "
        f"{number(data['production_answer_pct'], ' %')}",
        highlight=False,
    )
    out.print(
        f"canary rolled back in a drill: {number(data['drill']['decision_to_last_request_ms'], ' ms')} from the "
        "decision to the last new request on it",
        highlight=False,
    )
    out.print(f"served model {SERVED_MODEL}; report: {report}", highlight=False)
