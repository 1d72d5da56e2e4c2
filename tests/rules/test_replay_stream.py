"""A 200 is no success: what a server may send inside a stream (cases LG2, LG3)."""

from __future__ import annotations

import json

import pytest

from infra.replay.stream import CompletionStream

TEXT = {"choices": [{"delta": {"content": "a"}}]}
STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def stream(*events: object) -> CompletionStream:
    """A stream of these events, each an object or the raw lines of one, and its end."""
    found = CompletionStream()
    for event in (*events, "data: [DONE]"):
        lines = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        found.feed(f"{lines}\n\n".encode(), 1.0)
    found.close(2.0)
    return found


def test_LG2_a_whole_stream_is_ok() -> None:
    assert stream(TEXT, {**STOP, "error": None}).status() == ("ok", None)


@pytest.mark.parametrize(
    "fault",
    [
        'event: error\ndata: {"message":"boom","code":500}',
        {"type": "error", "message": "boom"},
        {"error": {}},
        {"error": "boom"},
        {"choices": [{"delta": {}, "finish_reason": "stop", "error": {"code": 502, "message": "boom"}}]},
    ],
)
def test_LG2_an_error_in_any_form_fails_the_request_wherever_it_stands(fault: object) -> None:
    for events in ((TEXT, STOP, fault), (fault, TEXT, STOP), (TEXT, fault, STOP)):
        status, why = stream(*events).status()
        assert status == "stream_error"
        assert why


@pytest.mark.parametrize(
    "malformed",
    [
        {"choices": [None]},
        {"choices": [{"delta": "x"}]},
        {"choices": 5},
        {"choices": [{"delta": {"content": ["x"]}}]},
        {"choices": [{"text": ["x"]}]},
        {"choices": [{"delta": {}, "finish_reason": ["x"]}]},
        "data: " + "[" * 100_000,
        "data: {",
    ],
)
def test_LG2_an_event_that_is_malformed_is_that_request_s_failure(malformed: object) -> None:
    status, why = stream(TEXT, malformed, STOP).status()
    assert status == "stream_error"
    assert why is not None
    assert len(why) < 300


@pytest.mark.parametrize(
    ("given", "counted"), [(5, 5), (10.0, 10), (-3, None), (0, None), (True, None), ("7", None), (2.5, None)]
)
def test_LG3_a_usage_that_cannot_be_is_none(given: object, counted: int | None) -> None:
    assert stream(TEXT, {**STOP, "usage": {"completion_tokens": given}}).counted_tokens == counted
