"""The replay against a stub of known timing: what is a success, what is a token, what was planned."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import numpy as np
import polars as pl
import psutil
import pytest

from infra.errors import BadInput
from infra.replay import (
    REQUEST_COLUMNS,
    ReplayLimits,
    ReplayOptions,
    ReplaySummary,
    compare_coverage,
    replay_code_hash,
    run_replay,
    run_replay_process,
)
from infra.replay.process import ReplayProcessFailed, ReplayTimedOut
from infra.replay.prompts import warmup_entries
from infra.replay.runner import LIVE_FILE, STOP_FILE
from infra.sampling import Sample, SampleEntry, make_sample, save_sample, strata_from_bounds
from tests.fakes.stub_llm import StubLLM, StubTiming, prompt_text

STRATA = strata_from_bounds(10, 100)


def entry(number: int, text: str = "", *, arrival_s: float = 0.0, prompt: int = 5, output: int = 4) -> SampleEntry:
    return SampleEntry(
        request_id=f"r{number}",
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        messages=({"role": "user", "content": text or f"question {number}"},),
    )


def sample_of(*entries: SampleEntry) -> Sample:
    return make_sample(entries, STRATA)


def one(stub: StubLLM, text: str, **options: object) -> dict[str, object]:
    """The row of a single request."""
    result = run_replay(
        sample_of(entry(1, text)),
        stub.base_url,
        "stub",
        None,
        ReplayOptions.model_validate({"timeout_s": 5, **options}),
    )
    return result.requests.row(0, named=True)


@pytest.fixture(scope="module")
def stub():
    with StubLLM(StubTiming(token_gap_s=0.002)) as server:
        yield server


@pytest.mark.parametrize(
    ("fault", "status", "http_status"),
    [
        ("stream_error", "stream_error", 200),
        ("error_then_reset", "stream_error", 200),
        ("abort", "stream_error", 200),
        ("json_answer", "stream_error", 200),
        ("cut", "cut", 200),
        ("reset", "cut", 200),
        ("no_done", "cut", 200),
        ("no_finish", "cut", 200),
        ("no_tokens", "no_tokens", 200),
        ("http_503", "http_error", 503),
        ("http_400", "http_error", 400),
    ],
)
def test_LG2_an_answer_that_ends_badly_is_a_failure_whatever_its_status(stub, fault, status, http_status):
    row = one(stub, f"[[fault:{fault}]]")
    assert (row["status"], row["http_status"]) == (status, http_status)
    assert row["error"]


def test_LG2_failures_are_in_the_error_rate_and_in_no_latency(stub):
    texts = ["fine", "[[fault:http_503]]", "[[fault:stream_error]]", "also fine"]
    result = run_replay(sample_of(*(entry(i, t) for i, t in enumerate(texts))), stub.base_url, "stub")
    summary = result.summary
    assert (summary.requests, summary.ok, summary.failed, summary.error_rate) == (4, 2, 2, 0.5)
    assert summary.failures == {"http_error": 1, "stream_error": 1}
    assert summary.output_tokens == 8
    served = result.requests.filter(pl.col("status") == "ok")
    assert summary.e2e_ms.max == pytest.approx(((served["end_s"] - served["planned_s"]) * 1000).max())


def test_LG2_over_the_error_limit_a_replay_is_no_result(stub):
    sample = sample_of(entry(1, "fine"), entry(2, "[[fault:cut]]"))
    summary = run_replay(
        sample, stub.base_url, "stub", None, ReplayOptions(limits=ReplayLimits(max_error_rate=0.1))
    ).summary
    assert not summary.valid
    assert "error rate 0.500 is above 0.100" in summary.invalid_reasons[0]


def test_LG2_nothing_served_gives_no_percentile_and_no_rate(stub):
    summary = run_replay(sample_of(entry(1, "[[fault:http_503]]")), stub.base_url, "stub").summary
    assert summary.ttft_ms.p99 is None
    assert summary.e2e_ms.p50 is None
    assert summary.output_tokens_per_s is None
    assert not summary.valid


def test_a_server_that_is_not_there_is_not_sent():
    row = run_replay(sample_of(entry(1)), "http://127.0.0.1:9/v1", "stub").requests.row(0, named=True)
    assert (row["status"], row["sent_s"], row["http_status"]) == ("not_sent", None, None)


def test_a_request_that_hangs_is_a_timeout(stub):
    assert one(stub, "[[fault:hang]]", timeout_s=0.2)["status"] == "timeout"


def test_LG1_latency_counts_from_the_plan_when_the_client_falls_behind():
    with StubLLM(StubTiming(first_token_s=0.2)) as slow:
        entries = [entry(i, arrival_s=i / 10, output=1) for i in range(8)]
        summary = run_replay(
            sample_of(*entries), slow.base_url, "stub", None, ReplayOptions(mode="open", concurrency=1)
        ).summary
    # 8 requests of 0.2 s through one slot, planned 0.1 s apart: the last waits 7*0.2 - 0.7 s and takes 0.2
    assert summary.e2e_ms.max >= 900
    assert summary.ttft_ms.max >= 900
    assert summary.dispatch_delay_ms.max >= 700
    assert not summary.valid
    assert summary.invalid_reasons[0].startswith("client-bound")


@pytest.mark.parametrize("options", [ReplayOptions(mode="open"), ReplayOptions(mode="closed", concurrency=150)])
def test_LG1_150_streams_are_150_streams(options):
    with StubLLM(StubTiming(first_token_s=1.0)) as slow:
        result = run_replay(sample_of(*(entry(i, output=1) for i in range(150))), slow.base_url, "stub", None, options)
        assert slow.max_concurrent == 150
    assert result.summary.max_in_flight == 150


def test_LG3_tokens_come_from_usage_and_tpot_from_tokens():
    with StubLLM(StubTiming(token_gap_s=0.05, tokens_per_chunk=5)) as chunky:
        result = run_replay(sample_of(entry(1, output=10)), chunky.base_url, "stub")
    row = result.requests.row(0, named=True)
    assert (row["output_tokens"], row["tokens_estimated"]) == (10, False)
    span_ms = (row["last_token_s"] - row["first_token_s"]) * 1000
    assert result.summary.tpot_ms.p50 == pytest.approx(span_ms / 9)
    assert result.summary.chunk_gap_ms.p50 == pytest.approx(span_ms)
    assert result.summary.itl_ms.p50 == pytest.approx(span_ms / 9)


def test_LG3_the_last_usage_wins(stub):
    assert one(stub, "[[fault:two_usages]]")["output_tokens"] == 4


def test_LG3_without_usage_tokens_are_marked_estimates(stub):
    row = one(stub, "[[fault:no_usage]]")
    assert (row["status"], row["output_tokens"], row["tokens_estimated"]) == ("ok", 4, True)


def test_LG3_exact_and_estimated_counts_are_not_mixed(stub):
    summary = run_replay(sample_of(entry(1), entry(2, "[[fault:no_usage]]")), stub.base_url, "stub").summary
    assert summary.tokens_estimated == 1
    assert not summary.valid
    assert "mixed token counts: 1 of 2" in summary.invalid_reasons[0]


def test_unprintable_tokens_count_to_the_last(stub):
    row = one(stub, "[[fault:silent_tokens]]")
    assert (row["status"], row["output_tokens"]) == ("ok", 4)
    assert row["last_token_s"] - row["first_token_s"] >= 3 * 0.002 * 0.9  # four tokens, three gaps


@pytest.mark.parametrize("fault", ["one_byte", "crlf", "none"])
def test_a_stream_means_the_same_however_it_is_cut(stub, fault):
    texts = run_replay(
        sample_of(entry(1, f"[[fault:{fault}]]")),
        stub.base_url,
        "stub",
        None,
        ReplayOptions(force_output_lengths=False, natural_max_tokens=4),
    ).texts
    assert texts == {"r1": "wörd wörd wörd wörd "}


def test_LG5_the_same_prompts_again_hit_the_cache_and_a_fresh_salt_does_not():
    with StubLLM(StubTiming(first_token_s=0.01, seen_factor=10)) as caching:
        sample = sample_of(*(entry(i) for i in range(20)))

        def cached(salt: str | None) -> int | None:
            return run_replay(
                sample, caching.base_url, "stub", None, ReplayOptions(cache_salt=salt)
            ).summary.cached_tokens

        assert cached(None) == 0
        assert cached(None) == 40
        assert cached("second") == 0


def test_warm_up_covers_each_stratum_with_other_prompts_and_is_never_counted(stub):
    sample = sample_of(entry(1, prompt=5), entry(2, prompt=50), entry(3, prompt=500))
    stub.bodies.clear()
    result = run_replay(sample, stub.base_url, "stub", None, ReplayOptions(warmup=6))
    assert result.summary.requests == 3
    assert (result.summary.warmup_sent, result.summary.warmup_failed) == (6, 0)
    warm, measured = ({prompt_text(b) for b in part} for part in (stub.bodies[:6], stub.bodies[6:]))
    assert (len(warm), len(measured), warm & measured) == (6, 3, set())
    assert {e.prompt_tokens for e in warmup_entries(sample, 3)} == {5, 50, 500}


def test_speed_runs_force_the_recorded_length_and_correctness_runs_stop_by_themselves(stub):
    stub.bodies.clear()
    one(stub, "speed")
    one(stub, "correctness", force_output_lengths=False)
    speed, correctness = stub.bodies
    assert (speed["max_tokens"], speed["min_tokens"], speed["ignore_eos"]) == (4, 4, True)
    assert speed["temperature"] == 0
    assert speed["stream_options"] == {"include_usage": True}
    assert not {"min_tokens", "ignore_eos"} & set(correctness)


def test_OB2_a_server_that_refuses_long_prompts_is_seen_by_pairing():
    long = " ".join(["word"] * 50)
    sample = sample_of(*(entry(i, long if i < 3 else "short", prompt=50 if i < 3 else 5) for i in range(10)))
    tables = []
    for timing in (StubTiming(), StubTiming(reject_prompts_from_tokens=40)):
        with StubLLM(timing) as server:
            tables.append(run_replay(sample, server.base_url, "stub").requests)
    coverage = compare_coverage(*tables, sample.stratum_by_request())
    assert coverage.not_covered == ("medium",)
    assert (coverage.paired, coverage.only_baseline) == (7, ("r0", "r1", "r2"))


def test_OB2_shorter_answers_show_in_the_token_ratio():
    sample = sample_of(*(entry(i, output=200) for i in range(3)))
    tables = []
    for timing in (StubTiming(), StubTiming(answer_tokens=20)):
        with StubLLM(timing) as server:
            tables.append(run_replay(sample, server.base_url, "stub").requests)
    assert compare_coverage(*tables, sample.stratum_by_request()).output_token_ratio == pytest.approx(0.1)


def test_block_ids_become_equal_text_for_equal_prefixes(stub):
    def blocks(number: int, *ids: int) -> SampleEntry:
        return SampleEntry(
            request_id=f"b{number}",
            arrival_s=0,
            prompt_tokens=150,
            output_tokens=2,
            block_ids=ids,
            block_tokens=64,
        )

    stub.bodies.clear()
    sample = sample_of(blocks(1, 7, 8, 9), blocks(2, 7, 8, 10))
    result = run_replay(sample, stub.base_url, "stub")
    first, second = (prompt_text(b).split() for b in stub.bodies)
    assert result.requests["prompt_tokens"].to_list() == [150, 150]
    assert first[:128] == second[:128]
    assert first[128:] != second[128:]
    stub.bodies.clear()
    run_replay(sample, stub.base_url, "stub", None, ReplayOptions(block_prompts="token_ids"))
    first, second = (b["prompt"] for b in stub.bodies)
    assert (len(first), first[:128] == second[:128], first == second) == (150, True, False)


def test_V11_a_closed_loop_keeps_its_slots_filled_and_counts_the_same_work_for_everybody():
    with StubLLM(StubTiming(first_token_s=0.01, token_gap_s=0.005, slots=4)) as server:
        result = run_replay(
            sample_of(*(entry(i, output=10) for i in range(24))),
            server.base_url,
            "stub",
            None,
            ReplayOptions(mode="closed", concurrency=4),
        )
    summary = result.summary
    assert (summary.output_tokens, summary.max_in_flight) == (240, 4)
    assert summary.duration_s == pytest.approx(result.requests["end_s"].max())
    assert summary.output_tokens_per_s == pytest.approx(240 / summary.duration_s)
    assert result.requests["request_id"].to_list() == [f"r{i}" for i in sorted(range(24), key=str)]
    assert server.max_concurrent == 4


def test_recorded_arrivals_are_kept_and_scaled(stub):
    sample = sample_of(*(entry(i, arrival_s=100 + i * 0.1) for i in range(3)))
    planned = run_replay(sample, stub.base_url, "stub", None, ReplayOptions(time_scale=0.5)).requests["planned_s"]
    assert planned.to_list() == pytest.approx([0.0, 0.05, 0.1])


def test_the_files_are_those_of_the_contract(stub, tmp_path):
    result = run_replay(sample_of(entry(1), entry(2)), stub.base_url, "stub", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["requests.parquet", "summary.json"]
    assert pl.read_parquet(tmp_path / "requests.parquet").columns == list(REQUEST_COLUMNS)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert ReplaySummary.model_validate_json((tmp_path / "summary.json").read_bytes()) == result.summary
    assert set(written["ttft_ms"]) == {"p50", "p90", "p99", "max"}
    assert written["replay_hash"] == replay_code_hash()


def test_the_replay_runs_as_a_process_on_its_own_core(stub, tmp_path):
    sample = sample_of(entry(1), entry(2))
    save_sample(sample, tmp_path / "sample.jsonl")
    result = run_replay_process(
        tmp_path / "sample.jsonl",
        stub.base_url,
        "stub",
        tmp_path / "out",
        cores=(0,),
        options=ReplayOptions(force_output_lengths=False),
    )
    assert result.summary.ok == 2
    assert result.summary.sample_hash == sample.content_hash()
    assert set(result.texts) == {"r1", "r2"}


def test_the_process_says_what_is_wrong_with_its_input(stub, tmp_path):
    (tmp_path / "sample.jsonl").write_text('{"request_id": "a"}\n')
    with pytest.raises(BadInput, match=r"sample\.jsonl, row 1"):
        run_replay_process(tmp_path / "sample.jsonl", stub.base_url, "stub", tmp_path / "out", cores=())


def test_conversations_are_named_to_the_gateway(stub):
    stub.headers.clear()
    talk = entry(1).model_copy(update={"conversation_id": "c-9"})
    run_replay(sample_of(talk), stub.base_url, "stub")
    assert stub.headers[0]["x-conversation-id"] == "c-9"


def test_a_replay_that_takes_too_long_is_ended_and_the_next_one_runs(stub, tmp_path):
    save_sample(sample_of(entry(1), entry(2, arrival_s=30.0)), tmp_path / "slow.jsonl")
    save_sample(sample_of(entry(1)), tmp_path / "quick.jsonl")
    with pytest.raises(ReplayTimedOut, match="longer than 3 s"):
        run_replay_process(
            tmp_path / "slow.jsonl", stub.base_url, "stub", tmp_path / "out", cores=(), process_timeout_s=3.0
        )
    assert not psutil.Process().children(recursive=True)
    done = run_replay_process(tmp_path / "quick.jsonl", stub.base_url, "stub", tmp_path / "out", cores=())
    assert done.summary.ok == 1


def test_a_replay_whose_process_is_killed_is_no_result(stub, tmp_path):
    save_sample(sample_of(entry(1), entry(2, arrival_s=30.0)), tmp_path / "sample.jsonl")

    def kill_the_child() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for server in psutil.Process().children():
                for child in server.children():
                    time.sleep(0.5)
                    child.kill()
                    return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_the_child)
    killer.start()
    with pytest.raises(ReplayProcessFailed, match="ended with -9"):
        run_replay_process(tmp_path / "sample.jsonl", stub.base_url, "stub", tmp_path / "out", cores=())
    killer.join()


def test_a_replay_does_not_outlive_the_process_that_asked_for_it(stub, tmp_path):
    save_sample(sample_of(entry(1), entry(2, arrival_s=60.0)), tmp_path / "sample.jsonl")
    code = (
        "from pathlib import Path; from infra.replay.process import run_replay_process as r;"
        f"r(Path({str(tmp_path / 'sample.jsonl')!r}), {stub.base_url!r}, 'stub', "
        f"Path({str(tmp_path / 'out')!r}), cores=())"
    )
    asker = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while not (mine := psutil.Process(asker.pid).children(recursive=True)) or len(mine) < 2:
        assert time.monotonic() < deadline, "no replay was started"
        time.sleep(0.1)
    asker.kill()
    asker.wait()
    _, alive = psutil.wait_procs(mine, timeout=10)
    assert not alive


def talk(number, question):
    """A request with a system prompt that all share and a question of its own."""
    asked = entry(number)
    messages = ({"role": "system", "content": "you are one helper of all"}, {"role": "user", "content": question})
    return asked.model_copy(update={"messages": messages})


QUESTIONS = ("why does the sea look blue today", "how many legs has a spider then", "what is the time in rome")


def test_LG5_variants_of_a_sample_share_only_what_conversations_share():
    with StubLLM(StubTiming(first_token_s=0.01, seen_factor=10)) as caching:
        sample = sample_of(*(talk(i, text) for i, text in enumerate(QUESTIONS, 1)))
        found = [
            run_replay(sample, caching.base_url, "stub", None, ReplayOptions(mode="closed", concurrency=2, variant=v))
            for v in range(3)
        ]
        assert [f.summary.ok for f in found] == [3, 3, 3]
        assert [f.summary.cached_tokens for f in found] == [0, 0, 0]
        assert len({f.summary.prompt_tokens for f in found}) == 1
        sent = [[m["content"] for m in body["messages"]] for body in caching.bodies]
        assert {system for system, _ in sent} == {"you are one helper of all"}
        assert len({question for _, question in sent}) == 9
        assert {tuple(sorted(q.split())) for _, q in sent} == {tuple(sorted(q.split())) for q in QUESTIONS}
        assert {f.summary.sample_hash for f in found} == {sample.content_hash()}


def test_an_endless_loop_tells_tokens_as_they_come_and_ends_when_it_is_told_to(tmp_path):
    with StubLLM(StubTiming(first_token_s=0.02, token_gap_s=0.005, slots=2)) as stub:
        sample = sample_of(*(talk(i, text) for i, text in enumerate(QUESTIONS, 1)))
        options = ReplayOptions(mode="closed", concurrency=2, endless=True)
        stopper = threading.Timer(1.0, (tmp_path / STOP_FILE).touch)
        stopper.start()
        before_s = time.monotonic()
        found = run_replay(sample, stub.base_url, "stub", tmp_path, options)
        after_s = time.monotonic()
    live = np.fromfile(tmp_path / LIVE_FILE, dtype="<f8").reshape(-1, 2)
    assert before_s <= live[:, 0].min() <= live[:, 0].max() <= after_s
    assert found.summary.failed == 0, "what was cut off by the end is nobody's failure"
    assert found.summary.requests > 2 * len(QUESTIONS)
    ended = int((live[:, 1] == 0).sum())
    assert found.summary.requests - 4 <= ended <= found.summary.requests
    tokens = live[live[:, 1] > 0, 1].sum()
    assert found.summary.output_tokens * 0.8 <= tokens <= found.summary.output_tokens * 1.2
    with pytest.raises(BadInput, match="endless"):
        run_replay(sample, "http://127.0.0.1:9/v1", "stub", None, options)
