"""Stage 2's rules: candidates from evidence, and what is refused about one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.readings import Reading
from tasks.bottleneck import evidence as ids
from tasks.bottleneck.checks import check_candidate
from tasks.bottleneck.records import BottleneckCandidate
from tasks.bottleneck.rules import bottleneck_report, rule_candidates

UNITS = {
    ids.KV_CACHE_MAX: "ratio",
    ids.PREFIX_HIT_RATE: "ratio",
    ids.PREFILL_TIME_SHARE: "ratio",
    ids.PREFIX_REUSE: "ratio",
    ids.LONG_SHARE: "ratio",
    ids.LONG_TOKEN_SHARE: "ratio",
    ids.CPU_SIDE_SHARE: "ratio",
    ids.QUEUE_TIME_P99: "ms",
    ids.SATURATED_SHARE: "ratio",
}


def pack(values):
    return ids.evidence_pack(
        "c", {i: v if isinstance(v, Reading) else Reading.of(v, UNITS.get(i, "")) for i, v in values.items()}
    )


def named(values):
    return {c.name: c for c in rule_candidates(pack(values))}


DEMO = {
    ids.RUNNING_MAX: 8,
    ids.RUNNING_AVG: 7.93,
    ids.WAITING_AVG: 7.4,
    ids.MAX_NUM_SEQS: 8,
    ids.PREFIX_CACHING: 0,
    ids.PREFIX_REUSE: 0.4321,
    ids.PREFILL_TIME_SHARE: 0.55,
    ids.LONG_SHARE: 0.07,
    ids.LONG_TOKEN_SHARE: 0.41,
    ids.MAX_MODEL_LEN: 8192,
    ids.KV_CACHE_MAX: 0.3,
    ids.PREEMPTIONS: 0,
}


def candidate(**change):
    return BottleneckCandidate(
        **{
            "name": "queueing",
            "cites": (ids.RUNNING_MAX, ids.MAX_NUM_SEQS),
            "claim": "8 requests run at a limit of 8",
            "expected_gain_pct": 20,
            "risk": 0.2,
            "confirm": "raise the limit",
            "falsify": "running stays at the old limit",
            "by": "analyst",
            **change,
        }
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queueing", {ids.RUNNING_MAX: 8, ids.MAX_NUM_SEQS: 8, ids.WAITING_AVG: 3}),
        ("prefix_recompute", {ids.PREFIX_CACHING: 0, ids.PREFIX_REUSE: 0.4}),
        ("prefix_recompute", {ids.PREFIX_HIT_RATE: 0, ids.PREFIX_REUSE: 0.4}),
        ("prefill", {ids.PREFILL_TIME_SHARE: 0.7}),
        ("kv_cache", {ids.KV_CACHE_MAX: 0.97}),
        ("kv_cache", {ids.PREEMPTIONS: 12}),
        ("long_context", {ids.LONG_TOKEN_SHARE: 0.5, ids.MAX_MODEL_LEN: 8192}),
        ("cpu_side", {ids.CPU_SIDE_SHARE: 0.4}),
        ("decode_batch", {ids.PREFILL_TIME_SHARE: 0.2, ids.RUNNING_AVG: 5}),
    ],
)
def test_each_bottleneck_is_seen_in_its_own_evidence(name, values):
    assert list(named(values)) == [name]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {ids.RUNNING_MAX: 8, ids.MAX_NUM_SEQS: 8, ids.WAITING_AVG: 0},
        {ids.RUNNING_MAX: 4, ids.MAX_NUM_SEQS: 8, ids.WAITING_AVG: 3},
        {ids.PREFIX_CACHING: 1, ids.PREFIX_HIT_RATE: 0, ids.PREFIX_REUSE: 0.4},
        {ids.PREFIX_CACHING: 0, ids.PREFIX_REUSE: 0.05},
        {ids.KV_CACHE_MAX: 0.5, ids.PREEMPTIONS: 0},
    ],
)
def test_uncertain_is_an_allowed_answer(values):
    assert named(values) == {}


def test_unknown_evidence_never_yields_a_candidate():
    assert named(dict.fromkeys(DEMO, Reading.unknown("no answer"))) == {}
    for missing in (ids.RUNNING_MAX, ids.WAITING_AVG, ids.MAX_NUM_SEQS):
        assert "queueing" not in named({**DEMO, missing: Reading.unknown("no answer")})


def test_MS4_marked_evidence_never_yields_a_candidate():
    marked = Reading.of(0.99, "ratio", mark="few_samples", cause="3 samples")
    assert "kv_cache" not in named({ids.KV_CACHE_MAX: marked})


def test_the_demos_evidence_names_prefix_recompute_and_queueing_before_the_tempting_one():
    report = bottleneck_report(pack(DEMO))
    names = [c.name for c in report.candidates]
    assert names[0] in ("prefix_recompute", "queueing")
    assert set(names[:2]) == {"prefix_recompute", "queueing"}
    assert names.index("long_context") == 2
    assert report.refused == ()


def test_the_rules_own_candidates_pass_the_check_that_analysts_are_held_to():
    for found in rule_candidates(pack(DEMO)):
        assert check_candidate(found, pack(DEMO)) is None


@given(st.fixed_dictionaries({i: st.floats(0, 1) if UNITS.get(i) == "ratio" else st.floats(0, 1e6) for i in DEMO}))
def test_L2_rule_candidates_quote_what_the_evidence_says(values):
    report = bottleneck_report(pack(values))
    assert report.refused == ()
    for found in report.candidates:
        assert found.cites
        assert found.falsify
        assert found.confirm


def test_L2_five_candidates_at_most():
    everything = {**DEMO, ids.KV_CACHE_MAX: 1, ids.CPU_SIDE_SHARE: 0.5}
    report = bottleneck_report(pack(everything))
    assert len(report.candidates) == 5
    assert any("beyond the 5 best" in text for text in report.refused)


def test_the_rules_candidate_stays_where_an_analyst_names_the_same():
    report = bottleneck_report(pack(DEMO), [candidate(cites=(ids.RUNNING_MAX,))])
    assert [c.by for c in report.candidates if c.name == "queueing"] == ["rules"]
    assert any("named already" in text for text in report.refused)


def test_an_analysts_own_candidate_is_taken_and_ranked():
    own = candidate(
        name="kv_cache", cites=(ids.KV_CACHE_MAX,), claim="the KV cache is 30 % full", expected_gain_pct=500
    )
    assert bottleneck_report(pack(DEMO), [own]).candidates[0].by == "analyst"


@pytest.mark.parametrize(
    "claim",
    [
        "8 requests run at a limit of 8",
        "the batch is full",
        "engine.running_max is 8",
        "p99 says nothing here, 8 run",
        "8 requests run, 43 % of tokens repeat",
        "43.2 % of tokens repeat",
        "a share of 0.43 repeats",
        "max_model_len is 8,192",
    ],
)
def test_L2_numbers_that_match_the_evidence_stand(claim):
    cites = (ids.RUNNING_MAX, ids.PREFIX_REUSE, ids.MAX_MODEL_LEN)
    assert check_candidate(candidate(claim=claim, cites=cites), pack(DEMO)) is None


@pytest.mark.parametrize(
    "claim",
    [
        "9 requests run",
        "8.4 requests run",
        "50 % of tokens repeat",
        "800 run",
        "8 run for 12ms",
        "-8 run",
        "8k run",
    ],
)
def test_L2_numbers_that_the_evidence_does_not_hold_are_refused(claim):
    refusal = check_candidate(candidate(claim=claim, cites=(ids.RUNNING_MAX, ids.PREFIX_REUSE)), pack(DEMO))
    assert re.search("the claim quotes", refusal)


def test_L2_a_number_in_seconds_matches_a_reading_in_ms():
    evidence = pack({ids.QUEUE_TIME_P99: 1500})
    ok = candidate(claim="requests wait 1.5 s", cites=(ids.QUEUE_TIME_P99,))
    assert check_candidate(ok, evidence) is None
    assert check_candidate(ok.model_copy(update={"claim": "requests wait 1.5 ms"}), evidence)


def test_L2_a_number_of_evidence_that_is_not_cited_is_refused():
    assert check_candidate(candidate(claim="8,192 is the limit", cites=(ids.RUNNING_MAX,)), pack(DEMO))


@pytest.mark.parametrize("field", ["confirm", "falsify", "claim"])
def test_L2_missing_parts_are_refused(field):
    assert f"{field} is missing" in check_candidate(candidate(**{field: " "}), pack(DEMO))


def test_L2_a_falsification_that_repeats_the_claim_is_refused():
    assert "repeats" in check_candidate(candidate(falsify="8 requests run at a limit of 8"), pack(DEMO))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("add two more GPUs", "other hardware"),
        ("move to newer H100s", "other hardware"),
        ("upgrade the accelerators", "other hardware"),
        ("serve a smaller model", "another model"),
        ("switch to a distilled checkpoint", "another model"),
        ("raise it and skip validation", "passing by"),
    ],
)
def test_L3_advice_that_the_loop_may_not_give_is_refused(words, what):
    assert what in check_candidate(candidate(confirm=words), pack(DEMO))
    assert what in check_candidate(candidate(claim=words), pack(DEMO))


@pytest.mark.parametrize("words", ["more requests per batch", "the model reads all weights in every step"])
def test_L3_ordinary_words_are_not_taken_for_forbidden_advice(words):
    assert check_candidate(candidate(claim=words), pack(DEMO)) is None


def test_L3_advice_without_data_is_refused():
    assert "no evidence with the id" in check_candidate(candidate(cites=("engine.magic",)), pack(DEMO))
    unknown = pack({**DEMO, ids.RUNNING_MAX: Reading.unknown("Prometheus did not answer")})
    assert "Prometheus did not answer" in check_candidate(candidate(), unknown)


def test_an_evidence_id_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match="no such evidence id"):
        ids.evidence_pack("c", {"engine.magic": Reading.of(1, "")})


@pytest.mark.parametrize(
    ("value", "status"), [(True, "value"), (False, "zero"), (8, "value"), (None, "unknown"), ("x", "unknown")]
)
def test_a_setting_becomes_a_reading(value, status):
    assert ids.config_reading(value, source="config").status == status
