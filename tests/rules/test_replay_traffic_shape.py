"""The production traffic that a demo replays: structure by phase, words by seed."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from infra.errors import BadInput
from infra.sampling import stratum_of
from infra.sampling.pool import inter_arrival_cv
from infra.traffic.shape import TrafficShape, arrivals, plan_window, planned_sample, prompt_lengths

SHAPE = TrafficShape()


def structure(plan):
    return [(p.offset_s, p.prompt_tokens, p.output_tokens, p.turn, p.tenant, p.part) for p in plan]


def words(plan):
    return [m["content"] for p in plan for m in p.messages if m["role"] == "user"]


def test_the_same_phase_with_another_seed_is_the_same_load_with_fresh_prompts():
    before, after = plan_window(SHAPE, 60, seed=1, phase=4), plan_window(SHAPE, 60, seed=2, phase=4)
    assert structure(before) == structure(after)
    assert not set(words(before)) & set(words(after))
    assert not {p.conversation_id for p in before} & {p.conversation_id for p in after}
    assert {p.messages[0]["content"] for p in before} == {p.messages[0]["content"] for p in after}


def test_another_phase_is_another_load():
    assert structure(plan_window(SHAPE, 60, 1, 4)) != structure(plan_window(SHAPE, 60, 1, 5))


def test_a_window_is_recorded_load_then_a_peak_then_a_lull():
    plan = plan_window(SHAPE, 100, seed=1, phase=0)
    recorded = [p.offset_s for p in plan if p.part == "recorded"]
    peak = [p.offset_s for p in plan if p.part == "peak"]
    assert max(recorded) < 50 <= min(peak)
    assert max(peak) < 70
    assert len(peak) / 20 > 2 * len(recorded) / 50


def test_V1_the_mix_is_62_31_7_to_the_nearest_request():
    lengths = prompt_lengths(SHAPE, 1000, random.Random(0))
    names = [stratum_of(tokens, SHAPE.strata) for tokens in lengths]
    assert [names.count(name) for name in ("short", "medium", "long")] == [620, 310, 70]


def test_the_length_law_has_the_mix_at_the_production_bounds_too():
    law = SHAPE.model_copy(update={"short_below_tokens": 512, "medium_below_tokens": 4096}).prompt_length_law()
    assert law.cdf(math.log(512)) == pytest.approx(0.62)
    assert law.cdf(math.log(4096)) == pytest.approx(0.93)


def test_gaps_have_the_coefficient_of_variation_of_the_shape():
    flat = SHAPE.model_copy(update={"wave_depth": 0.0, "interarrival_cv": 1.5})
    found = arrivals(flat, 10.0, 0.0, 3000.0, random.Random(1))
    assert inter_arrival_cv(found) == pytest.approx(1.5, rel=0.05)
    assert len(found) / 3000 == pytest.approx(10.0, rel=0.05)


def test_what_is_recorded_does_not_depend_on_the_peak():
    def recorded(shape):
        return [p for p in plan_window(shape, 60, seed=1, phase=0) if p.part == "recorded"]

    higher = SHAPE.model_copy(update={"peak_rate_per_s": 2 * SHAPE.peak_rate_per_s})
    assert recorded(SHAPE)
    assert recorded(higher) == recorded(SHAPE)


def test_conversations_grow_by_their_own_history():
    plan = plan_window(SHAPE, 600, seed=1, phase=0)
    latest: dict[str, tuple] = {}
    for planned in plan:
        earlier = latest.get(planned.conversation_id)
        if earlier is not None:
            assert planned.messages[: len(earlier)] == earlier
            assert [m["role"] for m in planned.messages[len(earlier) :]] == ["assistant", "user"]
        assert len(planned.messages) == 2 * planned.turn + 2
        latest[planned.conversation_id] = planned.messages
    assert any(p.turn >= 2 for p in plan)


def test_outputs_and_prompts_keep_the_bounds():
    plan = plan_window(SHAPE, 600, seed=1, phase=0)
    assert {8, 16} >= {min(p.output_tokens for p in plan), max(p.output_tokens for p in plan)}
    assert max(p.prompt_tokens for p in plan) <= SHAPE.longest_prompt_tokens
    counts = planned_sample(plan, SHAPE.strata).stratum_counts()
    assert counts == {name: sum(p.stratum == name for p in plan) for name in counts}
    assert statistics.median(p.prompt_tokens for p in plan) < SHAPE.short_below_tokens


def test_a_window_too_short_for_a_request_is_refused():
    with pytest.raises(BadInput, match="holds no request"):
        plan_window(SHAPE, 0.01, 1, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"mix": (0.5, 0.5, 0.5)}, {"peak_share": 0.8}, {"system_tokens": (200, 400)}, {"no_such_field": 1}],
)
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ValueError, match="validation error"):
        TrafficShape.model_validate(wrong)
