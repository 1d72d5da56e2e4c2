"""What a real Envoy counts of streams that break, read through a real Prometheus (spec R6)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import requests

from infra.metrics.envoy import EnvoyWindow
from infra.metrics.reader import MetricsReader, Selector
from infra.traffic.switch import EnvoySwitch
from tests.conftest import LocalStack
from tests.fakes.stub_llm import StubLLM, StubTiming


@pytest.fixture
def url(stack: LocalStack) -> Iterator[str]:
    """Envoy before a stub that breaks a stream on demand."""
    switch = EnvoySwitch.of_stack(stack.state_dir)
    switch.set_weight(0.0)
    with StubLLM(StubTiming(first_token_s=0.01, token_gap_s=0.02)) as stub:
        switch.set_endpoint("stable", "127.0.0.1", int(stub.base_url.split(":")[2].split("/")[0]))
        yield f"{stack.addresses.envoy}/v1/completions"


def ask(url: str, fault: str, *, leave: bool = False) -> str:
    """How one streamed request ended for its client."""
    prompt = f"hello [[fault:{fault}]]" if fault else "hello"
    body = {"model": "m", "prompt": prompt, "max_tokens": 20, "stream": True}
    try:
        with requests.post(url, json=body, stream=True, timeout=10) as answer:
            if leave:
                next(answer.iter_content(8))
                return "left"
            return f"{answer.status_code} {len(answer.content) > 0}"
    except requests.exceptions.ChunkedEncodingError:
        return "broken"


def test_R6_a_stream_that_breaks_after_a_200_is_counted_and_a_client_that_leaves_is_not(
    stack: LocalStack, url: str
) -> None:
    switch = EnvoySwitch.of_stack(stack.state_dir)
    assert ask(url, "") == "200 True"
    time.sleep(4.5)  # Prometheus has read the proxy before the window begins
    before, start_s = switch.counters()["stable"], time.time()
    time.sleep(1.5)
    ended = [ask(url, fault) for fault in ("reset", "", "error_then_reset", "reset", "http_503")]
    assert ended == ["broken", "200 True", "broken", "broken", "503 True"]
    assert ask(url, "", leave=True) == "left"
    time.sleep(2.5)
    reader = MetricsReader(stack.addresses.prometheus, 5.0)
    window = EnvoyWindow(reader, Selector(target={"job": "envoy"}), "stable", start_s, time.time())
    assert (window.broken().value, window.responses("5").value) == (3, 1), (window.broken(), window.responses("5"))
    assert switch.counters()["stable"].resets - before.resets == 4
