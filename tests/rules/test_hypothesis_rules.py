"""Stage 3's rules: the playbook, the limits of the search, the memory of rejections, the optimiser."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.engine.catalogue import OVERLAY
from infra.errors import BadInput
from infra.readings import Reading
from tasks.bottleneck import evidence as ids
from tasks.bottleneck.records import BottleneckCandidate, BottleneckReport
from tasks.hypothesis.knobs import CatalogueView, KnobFacts, allowed_range, normalised, same_idea
from tasks.hypothesis.memory import adoption_in_force, remembered
from tasks.hypothesis.playbook import parse_playbook
from tasks.hypothesis.proposals import Proposal, SearchRules, admit
from tasks.hypothesis.records import Hypotheses, Hypothesis, IdeaIdentity, RefusedIdea, RejectedIdea
from tasks.hypothesis.rules import combine_optimiser, is_exploring, only_if_it_pays, propose, select
from tasks.shared.records import KnobLimit, LedgerEntry, Outcome, Target
from tests.rules.serving_configs import serving_config

PLAYBOOK = parse_playbook((Path(__file__).parents[2] / "tasks/hypothesis/playbook.yaml").read_text())
VIEW = CatalogueView(
    knobs={
        k.name: k
        for k in (
            KnobFacts(
                name="max_num_seqs",
                knob_class="numeric",
                kind="int",
                minimum=1,
                maximum=4096,
                step=2,
                default=256,
            ),
            KnobFacts(
                name="max_num_batched_tokens",
                knob_class="numeric",
                kind="int",
                minimum=1,
                step=64,
                default=2048,
            ),
            KnobFacts(name="max_model_len", knob_class="numeric", kind="int", minimum=64, step=64),
            KnobFacts(
                name="gpu_memory_utilization",
                knob_class="numeric",
                kind="float",
                minimum=0.1,
                maximum=0.95,
                default=0.9,
            ),
            KnobFacts(name="swap_space", knob_class="numeric", kind="float", minimum=0, maximum=8, default=0.0),
            KnobFacts(name="enable_prefix_caching", knob_class="choice", kind="bool", default=True),
            KnobFacts(name="async_scheduling", knob_class="choice", kind="bool", default=False),
            KnobFacts(
                name="kv_cache_dtype",
                knob_class="choice",
                kind="text",
                choices=("auto", "fp8"),
                default="auto",
                may_change_outputs=True,
            ),
            KnobFacts(name="tensor_parallel_size", knob_class="structural", kind="int", minimum=1, step=1, default=1),
        )
    },
    synonyms={"concurrency_slots": "max_num_seqs"},
)
CONFIG = serving_config(max_num_seqs=256, enable_prefix_caching=False, max_model_len=8192)


def rules(config=CONFIG, **kw):
    return SearchRules(
        **{
            "config": config,
            "first_config": config,
            "view": VIEW,
            "limits": {},
            "default_max_drift_factor": 1.3,
            "history": (),
            "engine_build": "e",
            "model": "m",
            "workload": "w",
            **kw,
        }
    )


def report(*names, gain=20.0, **readings):
    pack = ids.evidence_pack("c", {ids.PROMPT_TOKENS_AVG: Reading.of(readings.get("prompt", 10), "tokens")})
    return BottleneckReport(
        campaign="c",
        evidence=pack,
        candidates=tuple(
            BottleneckCandidate(
                name=n,
                cites=(ids.PROMPT_TOKENS_AVG,),
                claim="because",
                expected_gain_pct=gain,
                risk=0.1,
                confirm="c",
                falsify="f",
            )
            for n in names
        ),
    )


def proposal(knob="max_num_seqs", value=300, **kw):
    return Proposal(
        **{
            "knob": knob,
            "value": value,
            "source": "agent",
            "because": "b",
            "validate_by": "v",
            "holds_if": "h",
            "worst_case": "w",
            **kw,
        }
    )


def rejected(knob="max_num_seqs", value=300, **kw):
    identity = {"engine_build": "e", "model": "m", "workload": "w", **kw}
    return RejectedIdea(
        identity=IdeaIdentity(knob=knob, value=value, **identity),
        outcome_class="regression",
        reason="P99 +340 %",
        throughput_change_pct=-12.5,
        campaign="old",
        trial_key="trials/1.json",
    )


# The playbook


def test_the_committed_playbook_covers_every_bottleneck_with_knobs_of_the_catalogue():
    assert {m.bottleneck for m in PLAYBOOK.moves} == {
        "queueing",
        "prefix_recompute",
        "prefill",
        "kv_cache",
        "cpu_side",
        "decode_batch",
        "long_context",
    }
    overlay = yaml.safe_load(OVERLAY.read_text())["knobs"]
    assert {m.knob for m in PLAYBOOK.moves} <= set(overlay)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "no YAML"),
        ("", "valid"),
        ("version: 1\nmoves: []", "moves"),
        ("version: 2\nmoves: [x]", "version"),
        ("version: 1\nmoves:\n- {knob: x, surprise: 1}", "surprise"),
    ],
)
def test_a_playbook_that_is_not_right_names_the_place(text, why):
    with pytest.raises(BadInput, match=why):
        parse_playbook(text)


@pytest.mark.parametrize("change", [{"move": "set"}, {"by": 1}, {"to": 3}, {"by": -2}])
def test_a_move_takes_what_its_kind_needs(change):
    move = PLAYBOOK.moves[0].model_dump() | change
    with pytest.raises(ValueError, match=r"takes|moves nothing|greater than 0"):
        type(PLAYBOOK.moves[0]).model_validate(move)


# H1, H2, H4, H5


def test_H1_a_hypothesis_says_everything():
    (found,) = propose(report("prefix_recompute"), PLAYBOOK, rules(), 5).hypotheses
    assert found.sentence().startswith(
        "if enable_prefix_caching goes from False to True, throughput_per_gpu moves by +20 % because"
    )
    for part in (found.validate_by, found.holds_if, found.worst_case, found.rollback, found.may_get_worse):
        assert part


def test_H1_an_effect_may_be_uncertain():
    (found,) = propose(report("prefix_recompute", gain=None), PLAYBOOK, rules(), 5).hypotheses
    assert found.expected_change_pct is None
    assert "uncertain" in found.sentence()


def test_H2_each_knob_is_moved_once_and_the_best_comes_first():
    found = propose(report("queueing", "prefix_recompute", "decode_batch", "long_context"), PLAYBOOK, rules(), 5)
    knobs = [h.knob for h in found.hypotheses]
    assert len(knobs) == len(set(knobs))
    assert knobs[0] == "enable_prefix_caching"
    assert any(r.rule == "H2 one switch" and r.knob == "max_num_seqs" for r in found.refused)


def test_H2_a_move_to_the_present_value_is_none():
    on = rules(serving_config(enable_prefix_caching=True))
    found = propose(report("prefix_recompute"), PLAYBOOK, on, 5)
    assert found.hypotheses == ()
    assert found.outcome == Outcome.FAIL


def test_max_candidates_bounds_the_result():
    found = propose(report("queueing", "prefix_recompute", "long_context"), PLAYBOOK, rules(), 1)
    assert len(found.hypotheses) == 1
    assert any(r.rule == "max_candidates" for r in found.refused)


def test_nothing_found_and_nothing_proposed_is_no_data():
    assert propose(report(), PLAYBOOK, rules(), 5).outcome == Outcome.NO_DATA


def test_H5_a_playbook_move_is_clipped_to_the_drift():
    found = propose(report("queueing"), PLAYBOOK, rules(), 5).hypotheses
    assert next(h for h in found if h.knob == "max_num_seqs").value_to == math.floor(256 * 1.3)


def test_H5_the_criterias_factor_opens_the_drift_for_one_knob():
    doubled = rules(limits={"max_num_seqs": KnobLimit(max_factor=2)})
    found = propose(report("queueing"), PLAYBOOK, doubled, 5).hypotheses
    assert next(h for h in found if h.knob == "max_num_seqs").value_to == 512


def test_H5_drift_is_counted_from_the_campaigns_first_baseline():
    later = rules(serving_config(max_num_seqs=330), first_config=CONFIG)
    assert isinstance(admit(proposal(value=340), later), RefusedIdea)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("max_num_seqs", 2048),
        ("max_num_seqs", 100),
        ("gpu_memory_utilization", 0.97),
        ("max_num_seqs", "many"),
        ("max_num_seqs", 256.5),
        ("max_num_seqs", True),
        ("max_num_seqs", "nan"),
        ("max_num_seqs", "inf"),
        ("kv_cache_dtype", "int2"),
        ("enable_prefix_caching", "maybe"),
        ("swap_space", 4.0),
        ("max_model_len", 0),
    ],
)
def test_H4_H5_a_named_value_outside_its_limits_is_refused(knob, value):
    found = admit(proposal(knob, value), rules())
    assert isinstance(found, RefusedIdea)
    assert found.rule == "H4 rails, H5 drift"


@pytest.mark.parametrize("knob", ["gpu_count", "skip_validation", "", "--trust-remote-code", "raise the slots to 256"])
def test_AG5_only_knobs_of_the_catalogue_can_be_moved(knob):
    assert admit(proposal(knob, 1), rules()).rule == "H4 search space"


def test_H4_structural_knobs_move_only_inside_limits_that_people_set():
    assert admit(proposal("tensor_parallel_size", 2), rules()).rule == "H4 structural"
    opened = rules(limits={"tensor_parallel_size": KnobLimit(max_factor=2, maximum=2)})
    assert isinstance(admit(proposal("tensor_parallel_size", 2), opened), Hypothesis)


def test_H4_the_criterias_rails_hold_beside_the_catalogues():
    railed = rules(limits={"max_num_seqs": KnobLimit(maximum=280)})
    assert isinstance(admit(proposal(value=300), railed), RefusedIdea)
    assert admit(proposal(value=300.0, named=False), railed).value_to == 280


def test_H4_couplings_refuse_what_the_engine_would_not_take():
    def forbids(arguments):
        return [f"max_num_batched_tokens {2048} < max_num_seqs"] if arguments["max_num_seqs"] > 256 else []

    found = admit(proposal(value=300), rules(forbids=forbids))
    assert (found.rule, found.text) == (
        "H4 couplings",
        "max_num_seqs: max_num_batched_tokens 2048 < max_num_seqs",
    )


def test_H4_the_token_budget_follows_from_sequences_and_mean_length():
    found = propose(report("queueing", prompt=8), PLAYBOOK, rules(), 5).hypotheses
    assert next(h for h in found if h.knob == "max_num_batched_tokens").value_to == 256 * 8 * 1.2 // 64 * 64


def test_output_changing_knobs_are_marked():
    assert admit(proposal("kv_cache_dtype", "FP8"), rules()).may_change_outputs is True


@given(st.floats(1, 1e6), st.floats(1.01, 4), st.one_of(st.none(), st.floats(1, 1e6)))
def test_H5_no_value_of_the_range_leaves_drift_or_rails(first, factor, maximum):
    facts = KnobFacts(name="k", knob_class="numeric", kind="float", minimum=0.5, maximum=maximum)
    try:
        found = allowed_range(facts, first, {"k": KnobLimit(max_factor=factor)}, 1.3)
    except BadInput:
        assert maximum is not None
        return
    assert max(first / factor, 0.5) == found.low <= found.high <= first * factor


# H3, AG6


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("max_num_seqs", 300),
        ("max-num-seqs", 300),
        ("--max-num-seqs", "300"),
        ("Max_Num_Seqs", "300.0"),
        ("concurrency slots", 300.0),
        ("max_num_seqs", 301),
    ],
)
def test_AG6_a_rejected_idea_is_refused_in_any_spelling_with_its_data(knob, value):
    found = admit(proposal(knob, value), rules(history=[rejected()]))
    assert found.rule == "H3 rejected before"
    for part in ("campaign old", "regression", "-12.5 %", "P99 +340 %", "trials/1.json"):
        assert part in found.text


@pytest.mark.parametrize(
    "old",
    [
        rejected(value=320),
        rejected(engine_build="e2"),
        rejected(model="m2"),
        rejected(workload="w2"),
        rejected(knob="max_model_len"),
    ],
)
def test_AG6_another_value_engine_model_or_workload_may_be_tried(old):
    assert isinstance(admit(proposal(), rules(history=[old])), Hypothesis)


def test_H3_an_adoption_allows_one_retest_that_names_it():
    retest = rules(history=[rejected()], interacts_with="enable_prefix_caching=true")
    assert isinstance(admit(proposal(), retest), Hypothesis)
    spent = rules(
        history=[rejected(interacts_with="enable_prefix_caching=true")],
        interacts_with="enable_prefix_caching=true",
    )
    assert admit(proposal(), spent).rule == "H3 rejected before"


@pytest.mark.parametrize("spelling", ["concurrency slots", "--max-num-seqs", "Max_Num_Seqs", "concurrency_slots"])
def test_AG6_a_rejection_is_understood_in_any_spelling(spelling):
    assert admit(proposal(), rules(history=[rejected(knob=spelling)])).rule == "H3 rejected before"


def test_H3_an_adoption_allows_one_retest_a_round():
    old = [rejected(), rejected(knob="max_num_batched_tokens", value=2560)]
    moves = [proposal(), proposal("max_num_batched_tokens", 2560)]
    kept, refused = select(moves, rules(history=old, interacts_with="enable_prefix_caching=true"), 5)
    assert [h.interacts_with for h in kept] == ["enable_prefix_caching=true"]
    assert "since enable_prefix_caching=true was adopted" in kept[0].sentence()
    assert [r.rule for r in refused] == ["H3 rejected before"]


def test_H3_an_idea_that_nobody_rejected_is_no_retest():
    kept, _ = select([proposal()], rules(interacts_with="enable_prefix_caching=true"), 5)
    assert [h.interacts_with for h in kept] == [""]


def test_H3_what_was_rejected_under_an_adoption_waits_for_the_next():
    def line(at_s, kind, outcome, campaign, **change):
        given = {"entry_id": "1", "at_s": at_s, "target": Target(model="m", pool="p"), "campaign": campaign}
        return LedgerEntry(**given, kind=kind, outcome_class=outcome, engine_build="e", workload="w", **change)

    trial = {"knob": "max_num_seqs", "value": 300}
    adopted = {"changes": {"enable_prefix_caching": True}}
    lines = [line(1, "trial", "regression", "one", **trial), line(2, "rollout", "completed", "one", **adopted)]
    assert adoption_in_force(lines, 1.5) == ""
    after_one = adoption_in_force(lines, math.inf)
    assert after_one == "enable_prefix_caching=True (one)"
    assert isinstance(admit(proposal(), rules(history=remembered(lines), interacts_with=after_one)), Hypothesis)
    lines.append(line(3, "trial", "regression", "two", **trial))
    again = rules(history=remembered(lines), interacts_with=adoption_in_force(lines, math.inf))
    assert admit(proposal(), again).rule == "H3 rejected before"
    lines.append(line(4, "rollout", "rolled_back", "two", changes={"block_size": 64}))
    assert adoption_in_force(lines, math.inf) == after_one


def test_H3_the_ledger_remembers_measured_single_knob_rejections():
    def entry(**change):
        return LedgerEntry(
            **{
                "entry_id": "1",
                "at_s": 1.0,
                "target": Target(model="m", pool="p"),
                "campaign": "old",
                "kind": "trial",
                "knob": "max_num_seqs",
                "value": 300,
                "outcome_class": "regression",
                "reason": "P99 +340 %",
                "engine_build": "e",
                "workload": "w",
                "record_key": "trials/1.json",
                **change,
            }
        )

    both = {"max_num_seqs": 300, "enable_prefix_caching": True}
    entries = [
        entry(),
        entry(outcome_class="effective"),
        entry(kind="refused"),
        entry(value=None),
        entry(changes=both),
        entry(outcome_class="unstable"),
    ]
    (idea,) = remembered(entries)
    assert admit(proposal(), rules(history=[idea])).rule == "H3 rejected before"


@pytest.mark.parametrize(
    ("expected", "measured"),
    [
        ((4.0, 5.0), 0),
        ((9.9,), 0),
        ((-5.0, 12.0), 0),
        ((10.0,), 1),
        ((6.0, 5.0), 2),
        ((30.0,), 1),
        ((2.0, None), 2),
        ((None,), 1),
    ],
)
def test_A4_ideas_that_promise_too_little_together_are_not_measured(expected, measured):
    knobs = [("max_num_seqs", 300), ("enable_prefix_caching", True)]
    kept, _ = select(
        [proposal(*knob, expected_change_pct=e) for knob, e in zip(knobs, expected, strict=False)], rules(), 5
    )
    assert len(kept) == len(expected)
    found = only_if_it_pays(Hypotheses(campaign="c", hypotheses=tuple(kept)))
    assert len(found.hypotheses) == measured
    assert len(found.refused) == len(expected) - measured
    assert all("does not pay" in r.text for r in found.refused)


def test_AG6_refusals_of_one_round_are_bounded():
    kept, refused = select([proposal("nonsense", i) for i in range(50)], rules(), 5, max_refusals=3)
    assert kept == []
    assert len(refused) == 4
    assert refused[-1].rule == "bounded refusals"


def test_AG6_a_refused_agent_does_not_cost_the_playbook_its_place():
    found = propose(
        report("prefix_recompute"),
        PLAYBOOK,
        rules(),
        5,
        extra=[proposal("nonsense", i, expected_change_pct=99.0) for i in range(3)],
    )
    assert [h.knob for h in found.hypotheses] == ["enable_prefix_caching"]


def test_values_have_one_spelling():
    facts = VIEW.knobs["max_num_seqs"]
    assert normalised(facts, "256.0") == normalised(facts, 256.0) == normalised(facts, " 256 ") == 256
    assert normalised(VIEW.knobs["enable_prefix_caching"], "On") is True
    assert same_idea(facts, 256, 257)
    assert not same_idea(facts, 256, 262)
    assert not same_idea(facts, 8, 10)


def test_H6_every_nth_round_explores_what_greed_leaves():
    assert [is_exploring(i, 3) for i in range(1, 7)] == [False, False, True, False, False, True]
    assert not is_exploring(5, 0)
    found = propose(report("queueing", "prefix_recompute"), PLAYBOOK, rules(), 1, exploring=True)
    assert found.hypotheses[0].knob != "enable_prefix_caching"


def test_the_optimisers_suggestion_passes_the_same_checks():
    found = propose(report("prefix_recompute"), PLAYBOOK, rules(), 5)
    more = combine_optimiser(found, ("max_num_seqs", 300), rules(), 5)
    assert [h.source for h in more.hypotheses] == ["playbook", "optimiser"]
    again = combine_optimiser(found, ("max_num_seqs", 300), rules(history=[rejected()]), 5)
    assert [h.source for h in again.hypotheses] == ["playbook"]
    assert again.refused[-1].rule == "H3 rejected before"
    assert combine_optimiser(found, None, rules(), 5) == found
    taken = combine_optimiser(found, ("enable_prefix_caching", True), rules(), 5)
    assert taken.refused[-1].rule == "H2 one switch"
