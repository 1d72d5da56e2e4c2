"""The demo's load: sized by the machine's speed, and each size has what a demo needs."""

from __future__ import annotations

import pytest

from deployments.demo.load import LENGTHS, LOADS, PROBE_REQUESTS, REFERENCE_S, WINDOW_S, Load, load_for, probe
from infra.traffic.shape import plan_window

MOST_SLOTS = 4
"""What `max_num_seqs` may become; a closed loop needs more requests than slots."""
MOST_AT_ONCE = 3
"""Arrivals within the time that one request takes alone."""


@pytest.mark.parametrize(
    ("alone_s", "speed"),
    [
        (REFERENCE_S, 1.0),
        (REFERENCE_S * 50, 1.0),  # slower than the smallest load is made for
        (REFERENCE_S / 1.35, 1.4),
        (REFERENCE_S / 2.1, 2.0),
        (REFERENCE_S / 50, 4.0),
    ],
)
def test_the_load_is_the_nearest_to_what_the_machine_serves(alone_s: float, speed: float) -> None:
    load, measured = load_for(alone_s)
    assert load.speed == speed
    assert measured == pytest.approx(REFERENCE_S / alone_s)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"speed {load.speed}")
def test_every_size_has_all_lengths_a_recorded_stretch_and_a_peak_that_fits(load: Load) -> None:
    bodies = set()
    for phase in load.phases:
        plan = plan_window(load.shape, WINDOW_S, seed=1, phase=phase)
        recorded = [p for p in plan if p.part == "recorded"]
        assert {p.stratum for p in recorded} == {"short", "medium", "long"}
        assert len(recorded) > MOST_SLOTS
        assert recorded[-1].offset_s - recorded[0].offset_s > WINDOW_S / 3
        times = [p.offset_s for p in recorded]
        assert max(sum(at <= t < at + REFERENCE_S / load.speed for t in times) for at in times) <= MOST_AT_ONCE
        assert 14 * load.speed <= len(plan) - len(recorded) <= 24 * load.speed
        bodies.add(tuple(p.prompt_tokens for p in recorded))
    assert len(bodies) == len(load.phases), "the held-out sample is the search's"


def test_the_probe_is_the_same_on_every_machine_and_fits_the_model() -> None:
    assert probe().content_hash() == probe().content_hash()
    assert len(probe().entries) == PROBE_REQUESTS
    assert all(e.prompt_tokens + e.output_tokens <= LENGTHS.longest_prompt_tokens for e in probe().entries)
