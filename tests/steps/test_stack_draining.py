"""A replaced replica is ended when Envoy has let go of it: on a real Envoy, with a stream that outlasts the change."""

from __future__ import annotations

import asyncio
import time

import pytest

from infra.stack.paths import StackPaths
from infra.traffic.draining import proxied_connections, wait_until_drained
from infra.traffic.switch import EnvoySwitch
from tests.steps.test_stack_switch import Arms as Servers
from tests.steps.test_stack_switch import arms, ask, client, switch  # noqa: F401  (fixtures)

pytestmark = pytest.mark.stack


async def test_R5_a_replaced_replica_is_drained_when_its_last_stream_has_ended(
    stack,
    arms: Servers,  # noqa: F811
    switch: EnvoySwitch,  # noqa: F811
) -> None:
    paths = StackPaths(stack.state_dir)
    old, new = arms.ports["stable"], arms.ports["canary"]
    async with client(stack) as session:
        await ask(session)  # leaves an idle connection
        assert await asyncio.to_thread(proxied_connections, paths, old) >= 1
        async with session.get("/stream", params={"n": "100"}) as stream:
            first = await stream.content.readline()
            assert first == b"data: stable 0\n"
            await asyncio.to_thread(switch.set_endpoint, "stable", "127.0.0.1", new)
            await asyncio.sleep(0.3)
            # The idle connection is gone and the busy one is not.
            assert await asyncio.to_thread(proxied_connections, paths, old) == 1
            assert not await asyncio.to_thread(wait_until_drained, paths, old, wait_s=0.5)
            started = time.monotonic()
            drained = asyncio.create_task(asyncio.to_thread(wait_until_drained, paths, old))
            rest = await stream.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            ended = time.monotonic() - started
        assert await drained
        assert ended > 0.5, "the stream ended before the wait had anything to wait for"
    assert await asyncio.to_thread(proxied_connections, paths, old) == 0


def test_R5_where_no_envoy_runs_nothing_is_waited_for(tmp_path) -> None:
    assert proxied_connections(StackPaths(tmp_path), 9) == 0
    assert wait_until_drained(StackPaths(tmp_path), 9, wait_s=5.0)
