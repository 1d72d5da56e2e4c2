"""Readings of both arms, steps and plans for tests of stage 5's rules."""

from __future__ import annotations

from infra.readings import Reading
from tasks.canary.plan import rollout_plan
from tasks.canary.records import ArmReadings, CanaryReadings
from tasks.shared.criteria import criteria_hash
from tasks.shared.records import CanaryStep
from tests.rules.trial_records import BASELINE, PRODUCTION, verdict

UNKNOWN = Reading.unknown("Prometheus answered 503")
HASH = criteria_hash(PRODUCTION)


def plan(**options):
    """A plan from a passing verdict."""
    return rollout_plan(verdict(), PRODUCTION, HASH, **{"baseline_config": BASELINE, "created_s": 1000.0, **options})


def arm(requests=4000, errors=0, slow=20, *, load=2.0, bound=1050.0, **others):
    def count(value):
        return value if isinstance(value, Reading) else Reading.of(value, "requests")

    values = {
        "ttft_p99": Reading.of(200, "ms"),
        "tpot_p99": Reading.of(20, "ms"),
        "latency_p99": Reading.of(1000, "ms"),
        "oom_count": Reading.of(0, "count"),
        "engine_up": Reading.of(1, "engines"),
        **others,
    }
    load = load if isinstance(load, Reading) else Reading.of(load, "requests/s")
    return ArmReadings(
        requests=count(requests),
        errors=count(errors),
        slow=count(slow),
        slow_bound_ms=bound,
        load_per_replica=load,
        **values,
    )


def window(canary=None, stable=None):
    return CanaryReadings(start_s=0, end_s=60, canary=canary or arm(), stable=stable or arm())


def step(**changes):
    return CanaryStep(
        **{
            "share": 0.5,
            "duration_s": 100.0,
            "stop_on": ("any",),
            "min_samples": 1000,
            "max_hold_s": 300.0,
            **changes,
        }
    )
