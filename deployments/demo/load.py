"""The demo's load: one plan, stretched in time by how fast this machine serves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from infra.errors import RatchetError
from infra.replay.records import ReplayOptions
from infra.replay.runner import run_replay
from infra.sampling.sample import Sample
from infra.traffic.shape import PlannedRequest, TrafficShape, plan_window, planned_sample

PROBE_PHASE, PROBE_REQUESTS = 618, 5

# Long system prompts that all requests of a tenant share, short questions and answers: what prefix caching is for.
LENGTHS = TrafficShape(
    tenants=2,
    system_tokens=(300, 400),
    short_below_tokens=460,
    medium_below_tokens=560,
    longest_prompt_tokens=700,
    shortest_turn_tokens=4,
    output_median_tokens=12.0,
    output_tokens=(10, 14),
    interarrival_cv=0.6,
    wave_depth=0.2,
)
RECORDED_ALONE = 20.0
"""Length of the recorded stretch, in times that a request takes alone; no shorter than `RECORDED_S`."""
RECORDED_S = 8.0
RECORDED_RATE = 0.42
"""Requests in the time that one takes alone: less than half of what the old configuration serves."""
PEAK_RATE = 8.0
"""The same at the peak: beyond what the best configuration serves, so that "after" has a queue too."""
PEAK_REQUESTS, PEAK_S = 40.0, 50.0
"""Requests of a peak: 40, and more where a request alone takes less than `PEAK_S` / 40, so that the queue lasts."""
SAME_MIX = 0.07
FEWEST_RECORDED = 8
MOST_AT_ONCE, AT_ONCE_ALONE = 2, 2.2
"""Recorded arrivals within so many times that a request takes alone. More would queue for the old configuration's two
sequences and share eight among them, which makes the slowest one slower: a real side effect, and not the demo's."""


@dataclass(frozen=True, slots=True)
class Load:
    """Production's traffic on a machine on which a request alone takes `alone_s` seconds."""

    alone_s: float

    @property
    def recorded_s(self) -> float:
        """Length of the recorded stretch at the beginning of a window."""
        return max(RECORDED_ALONE * self.alone_s, RECORDED_S)

    @property
    def peak_s(self) -> float:
        """Length of the peak's arrivals."""
        return max(PEAK_REQUESTS * self.alone_s, PEAK_S) / PEAK_RATE

    @property
    def window_s(self) -> float:
        """Recorded load, the peak; the window ends when the last request does."""
        return self.recorded_s + self.peak_s

    @property
    def timeout_s(self) -> float:
        """What a request may take: at the end of the peak all of it is in the queue."""
        return max(120.0, 3 * PEAK_REQUESTS * self.alone_s)

    @property
    def shape(self) -> TrafficShape:
        """A window of production."""
        return LENGTHS.model_copy(
            update={
                "recorded_rate_per_s": RECORDED_RATE / self.alone_s,
                "peak_rate_per_s": PEAK_RATE / self.alone_s,
                "peak_share": self.peak_s / self.window_s,
                "drain_share": 0.0,
                "wave_period_s": self.recorded_s / 2,
                "think_s": self.alone_s,
            }
        )

    @property
    def steady_shape(self) -> TrafficShape:
        """What runs during a drill and a rollout: a bit more than the recorded load, and no peak."""
        return self.shape.model_copy(
            update={"recorded_rate_per_s": 1.5 * RECORDED_RATE / self.alone_s, "peak_share": 0.0}
        )

    @property
    def phases(self) -> tuple[int, int]:
        """Two different stretches of this traffic: the search's sample and the held-out one."""
        one, two = itertools.islice((p for p in itertools.count(1) if self._fits(p)), 2)
        return one, two

    def _fits(self, phase: int) -> bool:
        """Whether the recorded stretch has all three lengths, arrivals over most of it, no large burst, and as much new
        text for each request as the peak has: what the sandbox predicts from it is then what production will answer."""
        plan = plan_window(self.shape, self.window_s, 0, phase)
        recorded = [p for p in plan if p.part == "recorded"]
        times = [p.offset_s for p in recorded]
        return (
            len(recorded) >= FEWEST_RECORDED
            and {p.stratum for p in recorded} == {"short", "medium", "long"}
            and times[-1] - times[0] > 0.6 * self.recorded_s
            and max(sum(at <= t < at + AT_ONCE_ALONE * self.alone_s for t in times) for at in times) <= MOST_AT_ONCE
            and abs(new_tokens(recorded) / new_tokens([p for p in plan if p.part == "peak"]) - 1) < SAME_MIX
        )

    def recorded(self, phase: int) -> list[PlannedRequest]:
        """What a window of this phase asks before its peak."""
        return [p for p in plan_window(self.shape, self.window_s, 0, phase) if p.part == "recorded"]


def new_tokens(plan: Sequence[PlannedRequest]) -> float:
    """Mean tokens of a prompt that neither the tenant's system prompt nor an earlier turn of the conversation holds."""
    seen: dict[str, int] = {}
    new = []
    for p in plan:
        system = str(p.messages[0]["content"])
        new.append(p.prompt_tokens - seen.get(p.conversation_id, len(system.split()) + system.count(".")))
        seen[p.conversation_id] = p.prompt_tokens
    return sum(new) / len(new)


def probe() -> Sample:
    """The requests by which a machine's speed is measured: always the same."""
    plan = plan_window(LENGTHS, 60.0, 0, PROBE_PHASE)[:PROBE_REQUESTS]
    return planned_sample(plan, LENGTHS.strata)


def seconds_alone(base_url: str, model: str) -> float:
    """Median seconds of a request that nothing else slows down.

    Raises:
        RatchetError: a request failed: what follows would measure nothing.
    """
    done = run_replay(probe(), base_url, model, options=ReplayOptions(mode="closed", concurrency=1, warmup=1))
    if failed := done.summary.requests - done.summary.ok:
        raise RatchetError(
            f"{failed} of {done.summary.requests} requests to the stable replica failed",
            remedy="See its log in the state folder",
        )
    return float(median((done.requests["end_s"] - done.requests["sent_s"]).to_list()))
