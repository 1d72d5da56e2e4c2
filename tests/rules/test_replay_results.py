"""The arithmetic of a replay: percentiles, reasons for no result, odd streams."""

from __future__ import annotations

import polars as pl
import pytest

from infra.replay import REQUEST_COLUMNS, ReplayLimits, goodput_share, percentiles
from infra.replay.results import invalid_reasons
from infra.replay.stream import CompletionStream


def table(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame([{"status": "ok", "tokens_estimated": False, **row} for row in rows], schema=REQUEST_COLUMNS)


def test_percentiles_interpolate_and_of_nothing_are_none():
    assert percentiles(pl.Series([0.0, 10.0])).p90 == pytest.approx(9.0)
    assert percentiles(pl.Series([], dtype=pl.Float64)).p99 is None


def test_OB2_goodput_counts_failures_in_the_denominator():
    rows = table(
        {"request_id": "a", "planned_s": 0.0, "sent_s": 0.0, "first_token_s": 0.1, "end_s": 0.2},
        {"request_id": "b", "planned_s": 0.0, "sent_s": 0.0, "first_token_s": 0.9, "end_s": 1.0},
        {"request_id": "c", "planned_s": 0.0, "sent_s": 0.0, "status": "http_error", "end_s": 0.001},
    )
    assert goodput_share(rows, "open", ttft_limit_ms=500) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((10, 10, 0, 10.0), None),
        ((10, 10, 0, 50.1), "client-bound: p99 of the dispatch delay 50.1 ms is above 50.0 ms"),
        ((10, 4, 0, 1.0), "too many errors: error rate 0.600 is above 0.500"),
        ((10, 0, 0, 1.0), "no request succeeded: 0 of 10"),
        ((10, 10, 3, 1.0), "mixed token counts: 3 of 10 are estimates, the others the server's"),
        ((10, 10, 10, 1.0), None),
        ((0, 0, 0, None), "no requests: the sample is empty"),
    ],
)
def test_LG1_a_replay_that_is_no_result_says_why(counts, reason):
    assert invalid_reasons(*counts, ReplayLimits()) == (() if reason is None else (reason,))


def fed(*events: bytes) -> CompletionStream:
    stream = CompletionStream()
    for number, event in enumerate(events):
        stream.feed(event, float(number))
    stream.close(float(len(events)))
    return stream


TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((TOKEN, FINISH, DONE), "ok"),
        ((TOKEN, FINISH, b"data: [DONE]"), "ok"),
        ((b": keep-alive\n\n", TOKEN, b"event: x\nid: 1\n\n", FINISH, DONE), "ok"),
        ((TOKEN, FINISH), "cut"),
        ((TOKEN, DONE), "cut"),
        ((), "cut"),
        ((TOKEN, b"data: {broken\n\n", FINISH, DONE), "stream_error"),
        ((TOKEN, b"data: [1]\n\n", FINISH, DONE), "stream_error"),
        ((TOKEN, b'event: error\ndata: {"object":"error","message":"m"}\n\n', FINISH, DONE), "stream_error"),
        ((b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', FINISH, DONE), "no_tokens"),
        ((b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n\n', FINISH, DONE), "ok"),
    ],
)
def test_LG2_only_a_token_a_finish_and_DONE_together_are_ok(events, status):
    assert fed(*events).status()[0] == status


def test_LG3_an_empty_usage_chunk_without_choices_is_usage():
    stream = fed(TOKEN, FINISH, b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n', DONE)
    assert (stream.prompt_tokens, stream.completion_tokens) == (3, 7)


def test_an_empty_delta_is_no_token_when_the_count_leaves_no_room_for_it():
    empty = b'data: {"choices":[{"delta":{"content":""}}]}\n\n'
    stream = fed(TOKEN, empty, empty, FINISH, b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\n', DONE)
    assert stream.chunk_times_s == [0.0]


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


def counted(tokens):
    return b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens


def test_LG7_a_refusal_is_output():
    refusal = b'data: {"choices":[{"delta":{"refusal":"no"},"finish_reason":null}]}\n\n'
    stream = fed(ROLE, refusal, refusal, FINISH, counted(2), DONE)
    assert stream.status() == ("ok", None)
    assert (stream.text, stream.counted_tokens, len(stream.chunk_times_s)) == ("nono", 2, 2)


def test_LG7_tokens_without_any_text_are_served_work_without_a_first_token():
    length = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
    stream = fed(ROLE, length, counted(5), DONE)
    assert stream.status() == ("ok", None)
    assert (stream.counted_tokens, stream.chunk_times_s) == (5, [])
    assert fed(ROLE, length, counted(0), DONE).status()[0] == "no_tokens"


@pytest.mark.parametrize(
    ("told", "events"),
    [
        ([1, 1], (TOKEN, TOKEN, FINISH, counted(2), DONE)),
        ([1, 1, 5], (TOKEN, TOKEN, FINISH, counted(7), DONE)),
        ([3, 1], (TOKEN.replace(b"]}", b'],"usage":{"completion_tokens":3}}'), TOKEN, FINISH, counted(4), DONE)),
        ([5], (ROLE, FINISH, counted(5), DONE)),
        ([], (ROLE, FINISH, DONE)),
    ],
)
def test_LG3_tokens_are_told_as_they_come_and_add_up_to_the_usage(told, events):
    seen = []
    stream = CompletionStream(lambda _, tokens: seen.append(tokens))
    for event in events:
        stream.feed(event, 0.0)
    stream.close(0.0)
    assert seen == told
