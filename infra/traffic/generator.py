"""Production's users: plays planned windows through the gateway and logs what came back."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import uvloop
from pydantic import BaseModel, ConfigDict, Field

from infra.errors import BadInput, RatchetError
from infra.replay.client import Observation, monotonic_from, open_session, stream_request
from infra.traffic.gateway_log import GatewayRecord, HourlyLogWriter, put_once_into
from infra.traffic.shape import PlannedRequest, TrafficShape, plan_window

_ROOT = Path(__file__).parents[2]
PASSED_ON = ("RATCHET_RUN",)
"""The mark by which a leftover generator is found; it opens nothing."""


class TrafficOptions(BaseModel):
    """What to play and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(description="the gateway, ending in /v1")
    model: str
    shape: TrafficShape = TrafficShape()
    window_s: float = Field(gt=0, description="length of one window")
    seed: int = Field(default=0, description="words of the first window; each further one adds 1")
    phase: int = Field(default=0, description="structure of every window")
    windows: int | None = Field(default=1, ge=1, description="how many windows; None: until stopped")
    force_output_lengths: bool = True
    timeout_s: float = Field(default=120.0, gt=0)


class TrafficStats(BaseModel):
    """How far the traffic is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sent: int
    ok: int
    failed: int
    in_flight: int
    windows_started: int
    window_starts_epoch_s: tuple[float, ...] = Field(description="when each window began")
    late_max_ms: float = Field(description="largest delay of sending behind the plan: the generator's own limit")
    running: bool


class TrafficGenerator:
    """Open-loop traffic on a thread of its own. `on_record` is called there for every finished request."""

    def __init__(self, options: TrafficOptions, on_record: Callable[[GatewayRecord], None] | None = None) -> None:
        if not options.base_url.startswith(("http://", "https://")):
            raise BadInput(f"the base URL {options.base_url!r} has no http:// or https://")
        self.options = options
        self._on_record = on_record
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._sent = self._ok = self._failed = self._in_flight = 0
        self._starts: list[float] = []
        self._late_s = 0.0

    def start(self) -> None:
        """Begin in the background. BadInput when it has been started before."""
        if self._thread is not None:
            raise BadInput("this generator was started before", remedy="Make a new one")
        self._thread = threading.Thread(target=self.run, name="traffic", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Play until the windows are over or `stop` is called, then wait for what is in flight."""
        try:
            uvloop.run(self._play())
        except BaseException as error:
            self._fault = error
            if self._thread is None:
                raise

    def stop(self, wait_s: float = 30.0) -> TrafficStats:
        """Send nothing more, wait for requests in flight, return the final counts.

        RatchetError when the generator itself failed, or did not end within `wait_s`.
        """
        self._stop.set()
        return self.join(wait_s)

    def join(self, wait_s: float | None = None) -> TrafficStats:
        """Wait for the end of the last window. Raises as `stop`."""
        if self._thread is not None:
            self._thread.join(wait_s)
            if self._thread.is_alive():
                raise RatchetError(f"the traffic did not end within {wait_s} s, {self._in_flight} in flight")
        if self._fault is not None:
            raise RatchetError(f"the traffic generator failed: {self._fault}") from self._fault
        return self.stats()

    def stats(self) -> TrafficStats:
        """The counts now."""
        return TrafficStats(
            sent=self._sent, ok=self._ok, failed=self._failed, in_flight=self._in_flight,
            windows_started=len(self._starts), window_starts_epoch_s=tuple(self._starts),
            late_max_ms=self._late_s * 1000, running=self._thread is not None and self._thread.is_alive(),
        )  # fmt: skip

    async def _play(self) -> None:
        options = self.options
        start = time.perf_counter()
        clock, epoch_s = monotonic_from(start), time.time()
        window = 0
        async with open_session(None) as session, asyncio.TaskGroup() as group:
            while not self._stop.is_set() and (options.windows is None or window < options.windows):
                plan = plan_window(options.shape, options.window_s, options.seed + window, options.phase)
                begin_s = max(window * options.window_s, clock() if window == 0 else 0.0)
                self._starts.append(epoch_s + begin_s)
                for planned in plan:
                    if await self._wait(begin_s + planned.offset_s, clock):
                        break
                    self._late_s = max(self._late_s, clock() - begin_s - planned.offset_s)
                    group.create_task(self._one(session, planned, clock, epoch_s, due_s=begin_s + planned.offset_s))
                await self._wait(begin_s + options.window_s, clock)
                window += 1

    async def _wait(self, until_s: float, clock: Callable[[], float]) -> bool:
        """Sleep until then; True when it was stopped instead."""
        while (left_s := until_s - clock()) > 0 and not self._stop.is_set():
            await asyncio.sleep(min(left_s, 0.1))
        return self._stop.is_set()

    async def _one(
        self,
        session: aiohttp.ClientSession,
        planned: PlannedRequest,
        clock: Callable[[], float],
        epoch_s: float,
        *,
        due_s: float,
    ) -> None:
        options = self.options
        body = {
            "model": options.model, "messages": list(planned.messages), "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": planned.output_tokens,
        }  # fmt: skip
        if options.force_output_lengths:
            body |= {"min_tokens": planned.output_tokens, "ignore_eos": True}
        seen = Observation(planned.request_id, due_s)
        self._sent += 1
        self._in_flight += 1
        try:
            await stream_request(
                session, options.base_url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), seen,
                clock=clock, timeout_s=options.timeout_s,
                headers={"x-conversation-id": planned.conversation_id},
                forced_tokens=planned.output_tokens if options.force_output_lengths else None,
            )  # fmt: skip
        finally:
            self._in_flight -= 1
        if seen.status == "ok":
            self._ok += 1
        else:
            self._failed += 1
        if self._on_record is not None:
            self._on_record(gateway_record(planned, seen, options.model, epoch_s))


def gateway_record(planned: PlannedRequest, seen: Observation, model: str, epoch_s: float) -> GatewayRecord:
    """The log record of one request; token counts only where the server gave them."""
    arrived_s = seen.sent_s if seen.sent_s is not None else seen.planned_s

    def since_ms(moment_s: float | None) -> float | None:
        return None if moment_s is None else (moment_s - arrived_s) * 1000

    return GatewayRecord(
        request_id=planned.request_id, conversation_id=planned.conversation_id, t_epoch_s=epoch_s + arrived_s,
        model=model, messages=planned.messages,
        prompt_tokens=None if seen.tokens_estimated else seen.prompt_tokens,
        output_tokens=None if seen.tokens_estimated else seen.output_tokens,
        status=seen.status, http_status=seen.http_status, finish_reason=seen.finish_reason,
        ttft_ms=since_ms(seen.chunk_times_s[0] if seen.chunk_times_s else None), e2e_ms=since_ms(seen.end_s),
        error=seen.error,
    )  # fmt: skip


def start_traffic_process(options: TrafficOptions, spool: Path, prefix: str) -> subprocess.Popen[bytes]:
    """The generator as a process of its own, with nothing but the gateway's address: no key, no store.

    Its log appears below `spool`; `ship_spool` moves it into the store. SIGTERM ends it after the requests in
    flight; it also ends when its starter is gone. Exit code 0 with `TrafficStats` as JSON on stdout, or 2 for a fault
    that stderr names.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [
        sys.executable, "-m", "infra.traffic.generator", "--options", options.model_dump_json(),
        "--spool", str(spool), "--prefix", prefix, "--parent", str(os.getpid()),
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": os.pathsep.join(paths),
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        },
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The process that `start_traffic_process` starts."""
    parser = argparse.ArgumentParser(prog="python -m infra.traffic.generator")
    parser.add_argument("--options", required=True, help="TrafficOptions as JSON")
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--parent", type=int, default=0)
    given = parser.parse_args(argv)
    writer = HourlyLogWriter(put_once_into(given.spool), given.prefix)
    generator = TrafficGenerator(TrafficOptions.model_validate_json(given.options), writer.add)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        generator.start()
        while generator.stats().running and not ended.wait(0.2):
            if given.parent and os.getppid() != given.parent:
                break
        stats = generator.stop(generator.options.timeout_s)
        writer.close()
        sys.stdout.write(stats.model_dump_json())
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
