"""The demo's load: one plan, stretched by the machine's speed, and at each speed it has what a demo needs."""

from __future__ import annotations

import pytest

from deployments.demo.load import LENGTHS, PROBE_REQUESTS, Load, probe
from infra.traffic.shape import plan_window
from tests.rules.trial_records import DEMO

SATURATED_S = 5.0
"""Seconds with a queue behind which production's throughput is a reading."""
SPEEDS = (0.15, 0.4, 1.3, 2.5, 6.0)


@pytest.mark.parametrize("alone_s", SPEEDS)
def test_a_window_has_all_lengths_a_recorded_stretch_and_a_peak_that_queues(alone_s: float) -> None:
    load = Load(alone_s)
    bodies = set()
    for phase in load.phases:
        recorded = load.recorded(phase)
        assert {p.stratum for p in recorded} == {"short", "medium", "long"}
        assert len(recorded) >= DEMO.measuring.sample_requests
        assert recorded[-1].offset_s < load.recorded_s
        peak = len(plan_window(load.shape, load.window_s, 0, phase)) - len(recorded)
        assert peak >= 0.7 * 40
        # what eight sequences with a warm prefix cache serve, about four in the time of one alone, leaves a queue
        assert (peak / 4 - peak / 8) * alone_s > 0.7 * SATURATED_S
        bodies.add(tuple(p.prompt_tokens for p in recorded))
    assert len(bodies) == 2, "the held-out sample is the search's"


def test_a_slower_machine_is_asked_the_same_at_a_slower_pace() -> None:
    slow, slower = Load(2.0), Load(4.0)
    assert slow.phases == slower.phases
    one, two = slow.recorded(slow.phases[0]), slower.recorded(slower.phases[0])
    assert [p.prompt_tokens for p in one] == [p.prompt_tokens for p in two]
    assert [p.offset_s * 2 for p in one] == pytest.approx([p.offset_s for p in two])


def test_the_probe_is_the_same_on_every_machine_and_fits_the_model() -> None:
    assert probe().content_hash() == probe().content_hash()
    assert len(probe().entries) == PROBE_REQUESTS
    assert all(e.prompt_tokens + e.output_tokens <= LENGTHS.longest_prompt_tokens + 14 for e in probe().entries)


def test_the_lengths_are_those_of_the_demos_criteria_and_half_the_context_is_too_short_for_some() -> None:
    measuring = DEMO.measuring
    assert (LENGTHS.short_below_tokens, LENGTHS.medium_below_tokens) == (
        measuring.short_below_tokens,
        measuring.medium_below_tokens,
    )
    assert LENGTHS.longest_prompt_tokens + LENGTHS.output_tokens[1] < 1024
    load = Load(1.3)
    assert max(p.prompt_tokens + p.output_tokens for p in load.recorded(load.phases[0])) > 512
