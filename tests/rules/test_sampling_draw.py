"""Drawing a sample: thinning, strata, ids, held-out traffic."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import BadInput
from infra.sampling import (
    DrawPlan,
    EmptyPool,
    PartialDraw,
    ShortfallRefused,
    draw_sample,
    finish_draw,
    load_sample,
    merge_draws,
    save_sample,
    strata_from_bounds,
)


def row(
    request_id: object,
    t: float,
    *,
    prompt: int | None = 100,
    output: int | None = 20,
    text: str = "",
    conversation: str | None = None,
    **more: object,
) -> dict[str, object]:
    return {
        "request_id": request_id,
        "conversation_id": conversation,
        "t_epoch_s": t,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "messages": [{"role": "user", "content": text or f"question at {t}"}],
        **more,
    }


def obj(name: str, *rows: dict[str, object]) -> tuple[str, bytes]:
    return name, "\n".join(json.dumps(r) for r in rows).encode()


def conversations(count: int, turns: int = 3) -> list[dict[str, object]]:
    return [
        row(f"r{c}-{turn}", c * 10.0 + turn, conversation=f"c{c}", prompt=(100, 600, 5000)[c % 3])
        for c in range(count)
        for turn in range(turns)
    ]


def objects_of(rows: list[dict[str, object]], per_object: int = 7) -> list[tuple[str, bytes]]:
    return [obj(f"part-{i}", *rows[i : i + per_object]) for i in range(0, len(rows), per_object)]


def ids(sample) -> list[str]:
    return [e.request_id for e in sample.entries]


def test_SA1_quotas_say_wanted_had_taken_and_never_top_up_from_another_stratum():
    rows = [row(f"s{i}", float(i)) for i in range(100)] + [row(f"l{i}", 200.0 + i, prompt=9000) for i in range(4)]
    sample, manifest = draw_sample([obj("o", *rows)], seed=1, n=30, quotas={"short": 10, "medium": 10, "long": 10})
    assert [(s.name, s.wanted, s.had, s.taken) for s in manifest.strata] == [
        ("short", 10, 100, 10),
        ("medium", 10, 0, 0),
        ("long", 10, 4, 4),
    ]
    assert manifest.shortfall
    assert manifest.arrivals_redrawn
    assert len(set(ids(sample))) == 14


def test_SA1_the_policy_fail_refuses_a_shortfall_and_names_the_strata():
    rows = [row(f"s{i}", float(i)) for i in range(100)]
    with pytest.raises(ShortfallRefused, match="medium: wanted 10, had 0, took 0"):
        draw_sample([obj("o", *rows)], seed=1, quotas={"short": 10, "medium": 10, "long": 10}, policy="fail")


def test_SA1_a_total_that_would_cut_the_quotas_is_refused():
    with pytest.raises(BadInput, match="add up to 30, more than n=20"):
        draw_sample([], seed=1, n=20, quotas={"short": 10, "medium": 10, "long": 10})


@given(st.randoms(use_true_random=False))
def test_SA1_the_same_seed_gives_the_same_sample_whatever_the_order_and_the_grouping(rng):
    rows = conversations(40)
    expected, said = draw_sample(objects_of(rows), seed=7, n=30)
    rng.shuffle(rows)
    objects = objects_of(rows, per_object=rng.randint(1, 20))
    plan = DrawPlan(seed=7, n=30)
    parts = [PartialDraw(plan) for _ in range(3)]
    for item in objects:
        rng.choice(parts).read([item])
    rng.shuffle(parts)
    sample, manifest = finish_draw(merge_draws(pickle.loads(pickle.dumps(part)) for part in parts))
    assert sample == expected
    assert (manifest.strata, manifest.prefix_reuse_pool) == (said.strata, said.prefix_reuse_pool)


def test_eviction_does_not_change_what_is_drawn():
    rows = conversations(3000)
    whole, _ = draw_sample(objects_of(rows, 500), seed=3, n=50)
    random.Random(0).shuffle(rows)
    other, manifest = draw_sample(objects_of(rows, 100), seed=3, n=50)
    assert whole == other
    assert manifest.requests_pool == 9000


def test_another_seed_gives_another_sample():
    objects = objects_of(conversations(60))
    assert ids(draw_sample(objects, seed=1, n=30)[0]) != ids(draw_sample(objects, seed=2, n=30)[0])


def test_conversations_are_kept_whole_and_arrivals_are_those_of_the_window():
    sample, _ = draw_sample(objects_of(conversations(60)), seed=5, n=30, window=(0, 600))
    for conversation in sample.conversations():
        members = [e for e in sample.entries if e.conversation_id == conversation]
        assert [e.arrival_s for e in members] == [int(conversation[1:]) * 10.0 + turn for turn in range(3)]


@pytest.mark.parametrize("size", [{"n": 30}, {"share": 0.3}])
def test_V12_a_held_out_sample_shares_no_conversation_with_the_first(size):
    objects = objects_of(conversations(200))
    first, said = draw_sample(objects, seed=9, **size)
    other, held = draw_sample(objects, seed=9, held_out=True, **size)
    assert not first.conversations() & other.conversations()
    assert held.held_out
    assert said.hash_high <= held.hash_low


def test_V12_a_pool_with_nothing_left_for_a_held_out_sample_says_so():
    with pytest.raises(EmptyPool, match="another day"):
        draw_sample(objects_of(conversations(4)), seed=9, n=12, held_out=True)


def test_share_takes_the_conversations_of_its_hash_interval():
    sample, manifest = draw_sample(objects_of(conversations(400, turns=1)), seed=4, share=0.25)
    assert 60 < len(sample.entries) < 140
    assert manifest.hash_high == pytest.approx(0.25)


def test_SA1_an_empty_prefix_and_an_empty_window_are_named():
    with pytest.raises(EmptyPool, match=r"traffic/m/2026/01/01 has no objects"):
        draw_sample([], seed=1, n=3, source="traffic/m/2026/01/01")
    with pytest.raises(EmptyPool, match=r"the given objects in the window 900 to 1000 s has 3 requests, none inside"):
        draw_sample([obj("o", *conversations(1))], seed=1, n=3, window=(900, 1000))


def test_SA2_missing_ids_are_kept_and_counted_and_long_ids_stay_text():
    rows = [
        row(key, float(i)) for i, key in enumerate([None, "None", "", "1344800117571260417", "1344800117571260418"])
    ]
    sample, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0)
    assert len(sample.entries) == 5
    assert manifest.missing_ids == 3
    assert {"1344800117571260417", "1344800117571260418"} < set(ids(sample))
    assert sum(name.startswith("made-") for name in ids(sample)) == 3


def test_SA2_numeric_ids_keep_all_their_digits():
    sample, _ = draw_sample([obj("o", row(1344800117571260417, 0.0))], seed=1, n=1)
    assert ids(sample) == ["1344800117571260417"]


def test_SA2_lines_without_an_id_stay_apart_even_when_they_are_equal():
    rows = [row(None, 1.0, text="hello")] * 3
    sample, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0)
    assert (len(set(ids(sample))), manifest.retries_collapsed, manifest.requests_pool) == (3, 0, 3)


def test_SA2_retries_collapse_to_the_success_at_the_first_arrival():
    rows = [
        row("a", 1.0, text="q", output=0, status=503),
        row("a", 2.0, text="q", output=3, status="cut"),
        row("a", 4.0, text="q", output=2, status="ok"),
        row("b", 5.0),
    ]
    sample, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0, window=(0, 10))
    assert [(e.request_id, e.arrival_s, e.output_tokens) for e in sample.entries] == [
        ("a", 1.0, 2),
        ("b", 5.0, 20),
    ]
    assert (manifest.retries_collapsed, manifest.requests_pool) == (2, 2)


def test_SA2_one_id_with_two_contents_is_two_requests():
    rows = [row("same", 1.0, text="first"), row("same", 2.0, text="second")]
    sample, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0)
    assert len(set(ids(sample))) == 2
    assert manifest.reused_ids == 1


def test_what_cannot_be_replayed_is_left_out_and_counted_by_reason():
    rows = [
        row("a", 1.0),
        row("b", 2.0, output=0, status=500),
        row("c", 3.0, prompt=None),
        row("d", 4.0, output=0),
    ]
    _, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0)
    assert manifest.dropped == {"failed without output": 1, "no prompt token count": 1, "no output": 1}


def test_V1_the_manifest_compares_mix_prefix_reuse_and_burstiness_with_the_pool():
    shared = [{"role": "system", "content": "s" * 90}]
    rows = [
        row(f"r{i}", float(i)) | {"messages": [*shared, {"role": "user", "content": f"{i:010d}"}]} for i in range(100)
    ]
    _, manifest = draw_sample([obj("o", *rows)], seed=1, share=1.0)
    # each prompt: 97 characters of system, 15 of user ("user", a separator, ten digits); system seen 99 times
    assert manifest.prefix_reuse_pool == pytest.approx(99 * 97 / (100 * (97 + 15)))
    assert manifest.prefix_reuse_sample == manifest.prefix_reuse_pool
    assert manifest.interarrival_cv_pool == pytest.approx(0.0, abs=1e-9)
    assert manifest.strata[0].pool_share == 1.0


@pytest.mark.parametrize("name", ["sample.jsonl", "sample.parquet"])
def test_a_sample_reads_back_as_it_was_written(tmp_path, name):
    sample, manifest = draw_sample(objects_of(conversations(20)), seed=1, n=20)
    assert save_sample(sample, tmp_path / name) == manifest.sample_hash
    assert load_sample(tmp_path / name) == sample
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_saved_sample_can_be_drawn_from_again(tmp_path):
    sample, _ = draw_sample(objects_of(conversations(20)), seed=1, share=1.0)
    save_sample(sample, tmp_path / "s.parquet")
    again, _ = draw_sample([("s.parquet", (tmp_path / "s.parquet").read_bytes())], seed=2, share=1.0)
    assert ids(again) == ids(sample)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5}',
            "either messages or block_ids",
        ),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":0,"block_ids":[1]}',
            "output_tokens",
        ),
        ("nonsense", "is not JSON"),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"messages":"[{"}',
            "messages is text that is not JSON",
        ),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"messages":"7"}',
            "messages",
        ),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"block_ids":5}',
            "block_ids is a list",
        ),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"hash_ids":"abc"}',
            "hash_ids is a list",
        ),
        (
            '{"request_id":"a","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"block_ids":[1.5]}',
            "a block id is a whole number or text",
        ),
    ],
)
def test_a_sample_file_that_is_no_sample_is_refused_by_row(tmp_path, line, fault):
    good = '{"request_id":"z","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"block_ids":[1]}'
    (tmp_path / "s.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(BadInput, match=rf"row 2.*{fault}"):
        load_sample(tmp_path / "s.jsonl")


def test_repeated_ids_in_a_sample_file_are_refused(tmp_path):
    good = '{"request_id":"z","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"block_ids":[1]}'
    (tmp_path / "s.jsonl").write_text(f"{good}\n{good}\n")
    with pytest.raises(BadInput, match="repeated, the first is 'z'"):
        load_sample(tmp_path / "s.jsonl")


def test_columns_that_are_not_used_are_named(tmp_path):
    (tmp_path / "s.jsonl").write_text(
        '{"request_id":"z","arrival_s":0,"prompt_tokens":5,"output_tokens":5,"hash_ids":["x","7"],"colour":"red"}'
    )
    sample = load_sample(tmp_path / "s.jsonl", strata_from_bounds(2, 6))
    assert sample.ignored_columns == ("colour",)
    assert sample.entries[0].block_ids[1] == 7
    assert sample.entries[0].stratum == "medium"


@pytest.mark.parametrize("quotas", [{"short": 1, "medium": 1, "long": 1}, {"medium": 1}, None])
@pytest.mark.parametrize("order", [1, -1])
def test_SA2_a_retry_on_the_other_side_of_a_bound_is_one_request(quotas, order):
    rows = [row("x", 1, prompt=511, text="same"), row("x", 2, prompt=513, text="same"), row("y", 3, prompt=9000)][
        ::order
    ]
    given = {"quotas": quotas, "n": None if quotas and len(quotas) == 3 else 5}
    sample, manifest = draw_sample([obj("a", *rows)], seed=1, **given)
    assert sorted(e.request_id for e in sample.entries) == ["x", "y"]
    assert manifest.retries_collapsed == 1
    assert {s.name: (s.had, s.taken) for s in manifest.strata} == {"short": (0, 0), "medium": (1, 1), "long": (1, 1)}


@pytest.mark.parametrize("nothing", ["", "None", None, 1.5])
def test_SA2_an_id_that_is_none_does_not_hide_the_next(nothing):
    failed = row("r1", 1, text="q", logical_id=nothing, output=0, status="timeout")
    sample, manifest = draw_sample([obj("a", failed, row("r1", 2, text="q", logical_id=nothing))], seed=1, n=5)
    assert [e.request_id for e in sample.entries] == ["r1"]
    assert (manifest.retries_collapsed, manifest.missing_ids) == (1, 0)
