"""The traffic generator through a stub gateway, its log, and the sample drawn from that log."""

from __future__ import annotations

import gzip
import json
import signal
import time

import pytest

from infra.errors import RatchetError
from infra.sampling import draw_sample, objects_from_dir
from infra.traffic.gateway_log import (
    GatewayRecord,
    HourlyLogWriter,
    hour_folder,
    put_once_into,
    ship_spool,
    traffic_prefix,
)
from infra.traffic.generator import TrafficGenerator, TrafficOptions, TrafficStats, start_traffic_process
from infra.traffic.shape import TrafficShape, plan_window
from tests.fakes.stub_llm import StubLLM, prompt_text

SHAPE = TrafficShape(recorded_rate_per_s=10, peak_rate_per_s=40, think_s=0.1)


@pytest.fixture
def stub():
    with StubLLM() as server:
        yield server


def options(stub: StubLLM, **more) -> TrafficOptions:
    return TrafficOptions(base_url=stub.base_url, model="stub", shape=SHAPE, window_s=2.0, seed=3, phase=1, **more)


def record(number: int, t_epoch_s: float) -> GatewayRecord:
    return GatewayRecord(
        request_id=f"r{number}",
        conversation_id=None,
        t_epoch_s=t_epoch_s,
        model="m",
        messages=({"role": "user", "content": "hi"},),
        prompt_tokens=3,
        output_tokens=2,
        status="ok",
    )


def test_planned_traffic_is_sent_logged_and_can_be_sampled(stub, tmp_path):
    writer = HourlyLogWriter(put_once_into(tmp_path), traffic_prefix("m@pool"))
    generator = TrafficGenerator(options(stub), writer.add)
    generator.start()
    stats = generator.join(30)
    writer.close()
    plan = plan_window(SHAPE, 2.0, seed=3, phase=1)
    assert (stats.sent, stats.ok, stats.failed, stats.running) == (len(plan), len(plan), 0, False)
    assert {prompt_text(b) for b in stub.bodies} == {prompt_text({"messages": p.messages}) for p in plan}
    assert {h["x-conversation-id"] for h in stub.headers} == {p.conversation_id for p in plan}
    sample, manifest = draw_sample(objects_from_dir(tmp_path), seed=1, share=1.0)
    assert {e.request_id for e in sample.entries} == {p.request_id for p in plan}
    assert manifest.bad_lines == 0
    assert manifest.missing_ids == 0


def test_each_further_window_has_fresh_words(stub):
    generator = TrafficGenerator(options(stub, windows=2))
    generator.run()
    users = [b["messages"][-1]["content"] for b in stub.bodies]
    assert len(users) == len(set(users)) == 2 * len(plan_window(SHAPE, 2.0, seed=3, phase=1))


def test_endless_traffic_stops_when_told_and_finishes_what_is_in_flight(stub):
    generator = TrafficGenerator(options(stub, windows=None))
    generator.start()
    time.sleep(0.5)
    stats = generator.stop(10)
    assert stats.sent == stats.ok + stats.failed > 0
    assert stats.in_flight == 0


def test_records_go_to_the_hour_of_their_arrival_in_UTC(tmp_path):
    writer = HourlyLogWriter(put_once_into(tmp_path), "traffic/t")
    for number, t in enumerate((3599.0, 3601.0, 3602.0)):
        writer.add(record(number, t))
    writer.close()
    assert hour_folder(3599.0) == "1970/01/01/00"
    lines = {
        key.rsplit("/", 1)[0]: gzip.decompress((tmp_path / key).read_bytes()).splitlines()
        for key in writer.written_keys
    }
    assert {hour: len(found) for hour, found in lines.items()} == {
        "traffic/t/1970/01/01/00": 1,
        "traffic/t/1970/01/01/01": 2,
    }
    assert json.loads(lines["traffic/t/1970/01/01/00"][0])["request_id"] == "r0"


def test_a_store_that_is_down_does_not_stop_the_traffic_nor_lose_a_record():
    store: dict[str, bytes] = {}
    down = [True]

    def put(key: str, data: bytes) -> bool:
        if down[0]:
            raise RatchetError("the store is down")
        return store.setdefault(key, data) is data

    writer = HourlyLogWriter(put, "traffic/t", flush_records=1)
    writer.add(record(1, 0.0))
    writer.add(record(2, 0.0))
    with pytest.raises(RatchetError, match="down"):
        writer.flush()
    down[0] = False
    writer.close()
    assert writer.written_records == 2
    assert len(b"".join(gzip.decompress(d) for d in store.values()).splitlines()) == 2


def test_the_generator_runs_as_a_process_that_knows_only_the_gateway(stub, tmp_path):
    process = start_traffic_process(options(stub, windows=None), tmp_path / "spool", "traffic/t")
    try:
        deadline_s = time.monotonic() + 20
        while not stub.bodies and time.monotonic() < deadline_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, stderr = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0, stderr
    stats = TrafficStats.model_validate_json(said)
    store: dict[str, bytes] = {}
    keys = ship_spool(tmp_path / "spool", lambda key, data: store.setdefault(key, data) is data)
    assert keys
    assert all(key.startswith("traffic/t/") for key in keys)
    logged = [json.loads(one) for data in store.values() for one in gzip.decompress(data).splitlines()]
    assert len(logged) == len(stub.bodies) == stats.sent
    assert stats.window_starts_epoch_s[0] <= min(one["t_epoch_s"] for one in logged)
    assert not list((tmp_path / "spool").rglob("part-*"))
