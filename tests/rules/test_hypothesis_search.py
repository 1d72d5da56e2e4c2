"""Where stage 3 may look: the optimiser, its space, and the installed engine's catalogue."""

from __future__ import annotations

import math

import pytest

from infra.engine.catalogue import build_catalogue
from infra.errors import BadInput
from infra.search import KnobSpace, Observation, suggest
from tasks.hypothesis.knobs import normalised
from tasks.hypothesis.proposals import Proposal, SearchRules, admit
from tasks.hypothesis.records import Hypothesis
from tasks.hypothesis.space import search_space
from tasks.hypothesis.view import catalogue_view, engine_objections
from tasks.shared.records import KnobLimit
from tests.rules.serving_configs import serving_config


def proposal(knob="max_num_seqs", value=300):
    return Proposal(knob=knob, value=value, source="agent", because="b", validate_by="v", holds_if="h", worst_case="w")


def search_rules(config, view, **kw):
    return SearchRules(
        **{
            "config": config,
            "first_config": config,
            "view": view,
            "limits": {},
            "default_max_drift_factor": 1.3,
            "history": (),
            "engine_build": "e",
            "model": "m",
            "workload": "w",
            **kw,
        }
    )


# The optimiser

SPACE = [
    KnobSpace(knob="max_num_seqs", kind="int", low=197, high=332, step=1, current=256),
    KnobSpace(knob="enable_prefix_caching", kind="choice", choices=(True, False), current=False),
]


def test_the_optimiser_is_seeded_and_moves_one_knob_to_a_new_value():
    one = suggest([], SPACE, 7)
    assert one == suggest([], SPACE, 7)
    knob, value = one
    assert knob in ("max_num_seqs", "enable_prefix_caching")
    assert value not in (256, False) or knob != "max_num_seqs"


def test_the_optimiser_learns_from_history_and_repeats_nothing():
    history = [Observation(knob="max_num_seqs", value=v, score=v / 100) for v in range(200, 330, 10)]
    history.append(Observation(knob="enable_prefix_caching", value=True, score=0.1))
    knob, value = suggest(history, SPACE, 1)
    assert knob == "max_num_seqs"
    assert value not in {o.value for o in history}


@pytest.mark.parametrize("score", [math.inf, -math.inf, math.nan])
def test_OB1_a_score_that_is_not_finite_is_refused(score):
    with pytest.raises(BadInput, match="max_num_seqs=300"):
        suggest([Observation(knob="max_num_seqs", value=300, score=score)], SPACE, 1)


def test_an_exhausted_space_gives_nothing():
    only = [KnobSpace(knob="x", kind="choice", choices=(1,), current=1)]
    assert suggest([], only, 1) is None
    assert suggest([], [], 1) is None
    assert suggest([Observation(knob="gone", value=1, score=1.0)], only, 1) is None


# The installed engine's catalogue


def catalogue():
    def knob(name, kind, note, **kw):
        return (
            {"name": name, "kind": kind, "flag": f"--{name.replace('_', '-')}", "optional": True, **kw},
            {name: {"meaning": "m", **note}},
        )

    made = [
        knob("max_num_seqs", "int", {"knob_class": "numeric", "min": 1, "max": 1024, "step": 1}),
        knob("max_num_batched_tokens", "int", {"knob_class": "numeric", "min": 32, "step": 1}, default=300),
        knob("block_size", "int", {"knob_class": "choice", "choices": ["16", "32"]}),
        knob("quantization", "str", {"knob_class": "choice"}),
        knob("kv_cache_dtype", "choice", {"knob_class": "choice"}, choices=["auto", "FP8"]),
    ]
    dump = {"engine": "e", "version": "1", "knobs": [k for k, _ in made]}
    return build_catalogue(dump, {"knobs": {n: o for _, note in made for n, o in note.items()}})


def test_the_catalogue_gives_the_view_its_rails_and_choices():
    view = catalogue_view(catalogue())
    assert set(view.knobs) == {"max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_dtype"}
    assert (view.knobs["max_num_seqs"].minimum, view.knobs["max_num_seqs"].maximum) == (1, 1024)
    assert normalised(view.knobs["block_size"], "32") == 32
    assert normalised(view.knobs["kv_cache_dtype"], "fp8") == "FP8"
    with pytest.raises(BadInput):
        normalised(view.knobs["block_size"], 64)


def test_a_choice_of_numbers_has_no_drift():
    view = catalogue_view(catalogue())
    found = admit(proposal("block_size", 32), search_rules(serving_config(block_size=16), view=view))
    assert found.value_to == 32


def test_H4_the_engines_own_rules_refuse_a_batch_larger_than_the_token_budget():
    config = serving_config(max_num_seqs=256).model_copy(update={"engine_build": "e 1"})
    strict = search_rules(config, view=catalogue_view(catalogue()), forbids=engine_objections(config, catalogue()))
    assert isinstance(admit(proposal(value=300), strict), Hypothesis)
    found = admit(proposal(value=320), strict)
    assert found.rule == "H4 couplings"
    assert "below max_num_seqs=320" in found.text


def test_the_optimisers_space_has_the_limits_of_proposals():
    config = serving_config(max_num_seqs=100, block_size=16)
    rules = search_rules(config, view=catalogue_view(catalogue()))
    space = {k.knob: k for k in search_space(rules, [*rules.view.knobs, "gone"], taken=["kv_cache_dtype"])}
    assert set(space) == {"block_size", "max_num_batched_tokens", "max_num_seqs"}
    assert space["max_num_seqs"].low == pytest.approx(100 / 1.3)
    assert space["max_num_seqs"].high == pytest.approx(130)
    assert space["block_size"].choices == (16, 32)


def test_a_knob_without_a_known_value_or_without_room_is_left_out():
    view = catalogue_view(catalogue())
    assert search_space(search_rules(serving_config(), view=view), ["max_num_seqs"]) == ()
    assert search_space(search_rules(serving_config(max_num_seqs=0), view=view), ["max_num_seqs"]) == ()
    opened = search_rules(serving_config(max_num_seqs=0), view=view, limits={"max_num_seqs": KnobLimit(maximum=4)})
    assert search_space(opened, ["max_num_seqs"])[0].high == 4


def test_suggestions_lie_on_the_knobs_grid():
    space = [KnobSpace(knob="x", kind="int", low=10, high=100, step=32, current=64)]
    assert {suggest([], space, seed)[1] for seed in range(8)} <= {32, 96}
    with pytest.raises(ValueError, match="no whole multiple"):
        KnobSpace(knob="x", kind="int", low=10, high=20, step=32)
