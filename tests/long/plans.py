"""Plans and criteria in an object store, as a campaign leaves them."""

from __future__ import annotations

import time
import uuid

from infra.engine.config import ServingConfig
from infra.store import ObjectStore, record_bytes
from tasks.baseline.records import BaselineReport, MetricBaseline
from tasks.canary.records import RolloutPlan
from tasks.shared.criteria import criteria_hash
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import Criteria, Reading, Target, Window
from tests.rules.arm_readings import plan
from tests.rules.trial_records import DEMO, PRODUCTION

CAMPAIGN = "c"
"""The campaign of every plan that the builders of tests/rules make."""


def put_criteria(store: ObjectStore, campaign: str = CAMPAIGN, criteria: Criteria = PRODUCTION) -> None:
    """The criteria that a campaign was pinned to; harmless when they are there."""
    pin = CriteriaPin(
        path="docs/perf-baseline.md",
        commit="0" * 40,
        blob="0" * 40,
        text_hash="0" * 64,
        criteria=criteria,
        criteria_hash=criteria_hash(criteria),
        pinned=True,
    )
    store.put_once(f"campaigns/{campaign}/criteria.json", record_bytes(pin))


def put_plan(store: ObjectStore, *, created_s: float) -> tuple[str, RolloutPlan]:
    """A plan that waits for approval: its key and itself. Another time makes another plan."""
    made = plan(created_s=created_s)
    key = f"campaigns/{CAMPAIGN}/plan-{made.content_hash()[:12]}.json"
    store.put_record_once(key, made)
    return key, made


def put_rollout(store: ObjectStore, target: Target, old: ServingConfig, new: ServingConfig) -> tuple[str, RolloutPlan]:
    """A plan from one real configuration to another with all that a rollout reads: two short steps and the demo's
    criteria, and a baseline whose P99 no sound replica exceeds, since this is about kills and not about latency."""
    changes = {k: v for k, v in new.args.items() if old.args.get(k) != v}
    steps = tuple(DEMO.canary_steps[i].model_copy(update={"duration_s": 6.0, "min_samples": 2}) for i in (1, 2))
    made = plan(created_s=time.time()).model_copy(
        update={
            "plan_id": uuid.uuid4().hex,
            "target": target,
            "campaign": target.pool,
            "config": new,
            "config_hash": new.config_hash(),
            "baseline_config": old,
            "baseline_hash": old.config_hash(),
            "changes": changes,
            "steps": steps,
        }
    )
    put_criteria(store, target.pool, DEMO)
    p99 = MetricBaseline(name="p99_latency", reading=Reading.of(57_000.0, "ms"))
    baseline = BaselineReport(
        target=target,
        campaign=target.pool,
        window=Window(start_s=made.created_s - 60, end_s=made.created_s),
        config=old,
        config_hash=made.baseline_hash,
        criteria_hash=made.criteria_hash,
        metrics=(p99,),
    )
    store.put_record_once(f"campaigns/{target.pool}/baseline.json", baseline)
    key = f"campaigns/{target.pool}/plan.json"
    store.put_record_once(key, made)
    return key, made
