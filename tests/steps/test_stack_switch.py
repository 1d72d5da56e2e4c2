"""The traffic switch on a real Envoy with two small servers as arms."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from infra.errors import BadInput, Unreachable
from infra.stack.atomic import replace_file
from infra.stack.control import stack_status
from infra.stack.envoy_documents import ARM_HEADER, CONVERSATION_HEADER, SPARE_ZERO_FILE, runtime_document
from infra.traffic.switch import EnvoySwitch, SwitchError, zero_weight_file

pytestmark = pytest.mark.stack


class Arms:
    """Two servers; `/` says its name, `/stream?n=…` sends n events slowly, `/fail` answers 500."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.got: Counter[str] = Counter()
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        for name in ("stable", "canary"):
            app = web.Application()
            app.router.add_get("/", self._named(name))
            app.router.add_get("/stream", self._stream(name))
            app.router.add_get("/fail", self._failing(name))
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.ports[name] = runner.addresses[0][1]
            self._runners.append(runner)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _named(self, name):
        async def answer(_request):
            self.got[name] += 1
            return web.Response(text=name)

        return answer

    def _failing(self, name):
        async def answer(_request):
            self.got[name] += 1
            return web.Response(status=500, text=name)

        return answer

    def _stream(self, name):
        async def answer(request):
            self.got[name] += 1
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(int(request.query["n"])):
                await response.write(f"data: {name} {number}\n\n".encode())
                await asyncio.sleep(0.02)
            await response.write(b"data: [DONE]\n\n")
            return response

        return answer


@pytest.fixture
async def arms(stack):
    arms = Arms()
    await arms.start()
    switch = EnvoySwitch.of_stack(stack.state_dir, deadline_s=10)
    for name, port in arms.ports.items():
        await asyncio.to_thread(switch.set_endpoint, name, "127.0.0.1", port)
    await asyncio.to_thread(switch.set_weight, 0)
    yield arms
    await asyncio.to_thread(switch.set_weight, 0)
    for name in arms.ports:
        await asyncio.to_thread(switch.clear_endpoint, name)
    await arms.stop()


@pytest.fixture
def switch(stack, arms):
    return EnvoySwitch.of_stack(stack.state_dir, deadline_s=10)


@asynccontextmanager
async def client(stack):
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(stack.addresses.envoy, connector=connector) as session:
        yield session


async def ask(session, conversation: str = "", path: str = "/") -> str:
    headers = {CONVERSATION_HEADER: conversation} if conversation else {}
    async with session.get(path, headers=headers) as answer:
        await answer.read()
        return answer.headers.get(ARM_HEADER, "") if answer.status == 200 else str(answer.status)


async def put(switch, share):
    await asyncio.to_thread(switch.set_weight, share)


async def test_without_a_weight_everything_goes_to_stable(stack, arms, switch):
    async with client(stack) as session:
        assert Counter([await ask(session) for _ in range(200)]) == {"stable": 200}
    assert switch.weight() == 0
    assert arms.got == {"stable": 200}


async def test_the_share_in_force_is_what_the_arms_get(stack, arms, switch):
    await put(switch, 0.25)
    async with client(stack) as session:
        got = Counter([await ask(session) for _ in range(2_000)])
    assert 400 < got["canary"] < 600  # 25 % of 2,000 within five standard deviations
    assert arms.got == got
    await put(switch, 1)
    async with client(stack) as session:
        assert Counter([await ask(session) for _ in range(100)]) == {"canary": 100}
    assert switch.weight() == 1


@pytest.mark.parametrize("share", [0.0001, 0.005, 0.05, 0.5, 1.0, 0.0])
async def test_R3_the_weight_is_read_back_from_envoy_not_from_the_file(stack, arms, switch, share):
    await put(switch, share)
    assert switch.weight() == pytest.approx(share)
    # What the file says is not the answer: Envoy does not follow a write that is no rename.
    stack.paths.runtime_file.write_text(runtime_document(7_000, "not in force"))
    assert switch.weight() == pytest.approx(share)
    await put(switch, share)


async def test_R6_a_conversation_stays_on_its_arm_also_while_the_weight_grows(stack, arms, switch):
    names = [f"conversation-{number}" for number in range(400)]
    await put(switch, 0.25)
    async with client(stack) as session:
        first = {name: await ask(session, name) for name in names}
        again = {name: await ask(session, name) for name in reversed(names)}
        assert first == again
        on_canary = {name for name, arm in first.items() if arm == "canary"}
        assert 50 < len(on_canary) < 150
        await put(switch, 0.5)
        grown = {name: await ask(session, name) for name in names}
        assert {name for name in on_canary if grown[name] != "canary"} == set()
        await put(switch, 0.25)
        assert {name: await ask(session, name) for name in names} == first


async def test_no_stream_is_dropped_when_the_weight_changes(stack, arms, switch):
    async def stream(session):
        async with session.get("/stream?n=40") as answer:
            return (await answer.text()).count("data:"), answer.headers[ARM_HEADER]

    await put(switch, 0.5)
    async with client(stack) as session:
        running = [asyncio.create_task(stream(session)) for _ in range(60)]
        while sum(arms.got.values()) < 60:
            await asyncio.sleep(0.01)
        report = await asyncio.to_thread(switch.rollback, quiet_s=0.2)
        results = await asyncio.gather(*running)
    assert {count for count, _ in results} == {41}
    assert {arm for _, arm in results} == {"stable", "canary"}
    assert report.canary_requests_after == 0


async def test_R3_after_a_rollback_the_canary_gets_no_request(stack, arms, switch):
    await put(switch, 0.5)
    stop = asyncio.Event()

    async def load(session):
        while not stop.is_set():
            await ask(session)

    async with client(stack) as session:
        workers = [asyncio.create_task(load(session)) for _ in range(8)]
        while arms.got["canary"] < 50:
            await asyncio.sleep(0.01)
        report = await asyncio.to_thread(switch.rollback, quiet_s=0.5)
        at_report = dict(arms.got)
        while arms.got["stable"] < at_report["stable"] + 200:
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*workers)
    assert arms.got["canary"] == at_report["canary"]
    assert switch.weight() == 0
    assert report.in_force_ms > 0
    assert report.decision_monotonic_s < time.monotonic()
    assert report.quiet_s == 0.5
    print(report)


async def test_CA5_a_rollback_with_nothing_in_progress_does_nothing_twice(stack, arms, switch):
    for _ in range(2):
        report = await asyncio.to_thread(switch.rollback, quiet_s=0.1)
        assert (report.canary_requests_after, report.last_canary_request_ms) == (0, None)
        assert switch.weight() == 0


async def test_weight_and_addresses_survive_a_kill_of_envoy(stack, arms, switch):
    await put(switch, 1)
    before = stack_status(stack.state_dir).part("envoy")
    os.kill(before.pid, signal.SIGKILL)
    while (now := await asyncio.to_thread(stack_status, stack.state_dir)).part("envoy").pid == before.pid or not now.ok:
        await asyncio.sleep(0.05)
    assert switch.weight() == 1
    assert switch.endpoints("canary") == [("127.0.0.1", arms.ports["canary"])]
    async with client(stack) as session:
        assert await ask(session) == "canary"


async def test_CA5_a_rollback_while_envoy_is_dead_takes_force_when_it_is_back(stack, arms, switch):
    await put(switch, 1)
    os.kill(stack_status(stack.state_dir).part("envoy").pid, signal.SIGKILL)
    report = await asyncio.to_thread(switch.rollback, quiet_s=0.2, deadline_s=30)
    assert report.canary_requests_after == 0
    assert switch.weight() == 0
    async with client(stack) as session:
        assert await ask(session) == "stable"


async def test_the_guardian_needs_nothing_but_the_file(stack, arms, switch):
    await put(switch, 1)
    zero_weight_file(stack.paths.runtime_file)
    while switch.weight() != 0:
        await asyncio.sleep(0.01)
    async with client(stack) as session:
        assert Counter([await ask(session) for _ in range(50)]) == {"stable": 50}


async def test_a_broken_file_keeps_the_weight_and_the_next_setting_works(stack, arms, switch):
    await put(switch, 0.5)
    replace_file(stack.paths.runtime_file, "{broken")
    await asyncio.sleep(0.3)
    assert switch.weight() == 0.5
    await put(switch, 0.05)
    assert switch.weight() == 0.05


async def test_a_refused_file_is_an_error_that_names_the_counter(stack, arms, switch, monkeypatch):
    import infra.traffic.switch as module

    monkeypatch.setattr(module, "runtime_document", lambda *_: "{broken")
    with pytest.raises(SwitchError, match="update_failure"):
        await put(switch, 0.5)
    assert switch.weight() == 0


async def test_CA5_another_value_in_force_is_an_error_with_both_numbers(stack, arms, switch, monkeypatch):
    import infra.traffic.switch as module

    monkeypatch.setattr(module, "runtime_document", lambda _weight, version: runtime_document(300, version))
    quick = EnvoySwitch.of_stack(stack.state_dir, deadline_s=0.5)
    with pytest.raises(SwitchError, match="weight 500/10000 did not take force; Envoy has canary 300"):
        await put(quick, 0.05)


async def test_CA1_a_share_that_rounds_to_nothing_is_refused(switch):
    for share in (0.00001, -0.1, 1.1, float("nan")):
        with pytest.raises(BadInput):
            await put(switch, share)


async def test_a_canary_has_an_address_as_long_as_it_has_weight(stack, arms, switch):
    await put(switch, 0.1)
    with pytest.raises(SwitchError, match="still has weight"):
        await asyncio.to_thread(switch.clear_endpoint, "canary")
    await put(switch, 0)
    await asyncio.to_thread(switch.clear_endpoint, "canary")
    assert switch.endpoints("canary") == []
    with pytest.raises(SwitchError, match="no address"):
        await put(switch, 0.1)
    with pytest.raises(BadInput, match="IP address"):
        switch.set_endpoint("canary", "localhost", 80)
    with pytest.raises(BadInput, match="Arms: stable, canary"):
        switch.set_endpoint("blue", "127.0.0.1", 80)


async def test_the_address_of_stable_changes_without_dropping_streams(stack, arms, switch):
    async with client(stack) as session, session.get("/stream?n=30") as answer:
        await answer.content.readline()
        await asyncio.to_thread(switch.set_endpoint, "stable", "127.0.0.1", arms.ports["canary"])
        before = arms.got["canary"]
        await ask(session)
        assert arms.got["canary"] == before + 1
        assert (await answer.text()).endswith("data: [DONE]\n\n")


async def test_counters_tell_answers_failures_and_refused_connections_apart(stack, arms, switch):
    before = switch.counters()
    await put(switch, 1)
    async with client(stack) as session:
        for path in ("/", "/", "/fail", "/none"):
            await ask(session, path=path)
        await asyncio.to_thread(switch.set_endpoint, "canary", "127.0.0.1", 1)
        assert await ask(session) == "503"
    after = switch.counters()
    change = {
        name: getattr(after["canary"], name) - getattr(before["canary"], name)
        for name in ("rq_2xx", "rq_4xx", "rq_5xx", "connect_failures", "active")
    }
    assert change == {"rq_2xx": 2, "rq_4xx": 1, "rq_5xx": 2, "connect_failures": 1, "active": 0}
    assert after["stable"] == before["stable"]


async def test_an_absent_envoy_is_unreachable_and_the_weight_is_still_written(tmp_path):
    (tmp_path / "runtime").mkdir()
    file = tmp_path / "runtime" / "rtds.json"
    absent = EnvoySwitch("http://127.0.0.1:9", file, tmp_path, deadline_s=0.2)
    with pytest.raises(Unreachable, match="is written"):
        absent.set_weight(0)
    assert '"ratchet.canary": 0' in file.read_text()
    with pytest.raises(Unreachable):
        absent.weight()
    with pytest.raises(Unreachable):
        absent.counters()


def test_the_guardian_works_on_a_full_disk(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        (small / "runtime").mkdir()
        file = small / "runtime" / "rtds.json"
        replace_file(file, runtime_document(500, "before"))
        replace_file(small / SPARE_ZERO_FILE, runtime_document(0, "spare"))
        with pytest.raises(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        zero_weight_file(file)
        assert '"ratchet.canary": 0' in file.read_text()
    finally:
        subprocess.run(["umount", small], check=True)
