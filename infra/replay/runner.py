"""Run a replay: open loop by the recorded plan, or closed loop at a fixed number in flight."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import polars as pl
import uvloop

from infra.errors import BadInput
from infra.replay.client import Observation, monotonic_from, open_session, stream_request
from infra.replay.code_hash import replay_code_hash
from infra.replay.prompts import request_body, request_path, warmup_entries
from infra.replay.records import ReplayOptions, ReplayResult, ReplaySummary
from infra.replay.results import requests_frame, summarize
from infra.replay.variants import Variations
from infra.sampling.files import write_atomically
from infra.sampling.sample import Sample, SampleEntry

REQUESTS_FILE = "requests.parquet"
SUMMARY_FILE = "summary.json"
TEXTS_FILE = "texts.json"
LIVE_FILE = "live.bin"
"""What an endless replay writes as it goes: pairs of float64, the moment by the machine's monotonic clock, and output
tokens that came (above 0), a request that ended well (0) or one that failed (-1)."""
STOP_FILE = "STOP"
LIVE_EVERY_S = 0.1
_WARMUP_IN_FLIGHT = 8
PROGRESS_EVERY_S = 10.0
Progress = Callable[[int, int, int], None]
"""Takes the requests that have ended, those in flight, and all of the replay."""


async def replay(
    sample: Sample,
    base_url: str,
    model: str,
    out_dir: Path | None = None,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay `sample` against an OpenAI-compatible server.

    `base_url` ends in /v1. With `out_dir`, requests.parquet and summary.json (and texts.json when lengths are
    not forced) appear there, each whole or not at all. `progress` is called every PROGRESS_EVERY_S. Failures of
    the server are results, not exceptions; BadInput for an unusable address, option or sample.
    """
    run = _Replay(sample, base_url, model, options or ReplayOptions(), progress, out_dir)
    result = await run.measure()
    if out_dir is not None:
        save_result(result, out_dir)
    return result


def run_replay(
    sample: Sample,
    base_url: str,
    model: str,
    out_dir: Path | None = None,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """`replay` in an event loop of its own (uvloop), for callers that have none."""
    return uvloop.run(replay(sample, base_url, model, out_dir, options, progress))


def save_result(result: ReplayResult, out_dir: Path) -> None:
    """Write the result's files into `out_dir`; the summary comes last and means that all are there."""
    out_dir.mkdir(parents=True, exist_ok=True)
    parquet = io.BytesIO()
    result.requests.write_parquet(parquet)
    write_atomically(out_dir / REQUESTS_FILE, parquet.getvalue())
    if result.texts:
        body = json.dumps(result.texts, ensure_ascii=False, sort_keys=True)
        write_atomically(out_dir / TEXTS_FILE, body.encode(errors="surrogatepass"))
    write_atomically(out_dir / SUMMARY_FILE, (result.summary.model_dump_json(indent=1) + "\n").encode())


def load_result(out_dir: Path) -> ReplayResult:
    """Read what `save_result` wrote. BadInput when a file is missing or not of this form."""
    try:
        summary = ReplaySummary.model_validate_json((out_dir / SUMMARY_FILE).read_bytes())
        requests = pl.read_parquet(out_dir / REQUESTS_FILE)
        texts_file = out_dir / TEXTS_FILE
        texts = json.loads(texts_file.read_bytes()) if texts_file.exists() else {}
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"{out_dir} holds no complete replay result: {error}", remedy="Replay again") from error
    return ReplayResult(requests, summary, texts)


class _Replay:
    """One replay under way."""

    def __init__(
        self,
        sample: Sample,
        base_url: str,
        model: str,
        options: ReplayOptions,
        progress: Progress | None,
        out_dir: Path | None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise BadInput(f"the base URL {base_url!r} has no http:// or https://")
        if not sample.entries:
            raise BadInput("the sample holds no request", remedy="Draw it again, from a window with traffic")
        if options.mode == "closed" and options.concurrency is None:
            raise BadInput("a closed loop needs a concurrency", remedy="Give --concurrency N")
        if options.endless and (options.mode == "open" or out_dir is None):
            raise BadInput("an endless replay is a closed loop with a folder for its results")
        self.sample = sample
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.options = options
        self.progress = progress
        self.in_flight = 0
        self.max_in_flight = 0
        self.ended = 0
        self.origin_s = time.perf_counter()
        self.clock = monotonic_from(self.origin_s)
        self.out_dir = out_dir
        self.variations = Variations(sample.entries)
        self.live: list[bytes] = []
        # bodies are made before the clock starts: building them is no part of the measured client's work
        self.ready = self._pass(options.variant)

    def _pass(self, variant: int) -> list[tuple[SampleEntry, str, bytes]]:
        entries = [self.variations.of(e, variant) for e in self.sample.entries]
        if variant > self.options.variant:
            mark = f"~{variant - self.options.variant + 1}"
            entries = [e.model_copy(update={"request_id": f"{e.request_id}{mark}"}) for e in entries]
        return [(e, self._url(e), self._body(e)) for e in entries]

    def _url(self, entry: SampleEntry) -> str:
        return self.base_url + request_path(entry, self.options)

    def _body(self, entry: SampleEntry) -> bytes:
        return json.dumps(request_body(entry, self.model, self.options)).encode()

    async def measure(self) -> ReplayResult:
        """Warm up, replay, summarize."""
        open_loop = self.options.mode == "open"
        async with open_session(None if open_loop else self.options.concurrency) as session:
            warmup = await self._warm_up(session)
            with _no_collection():
                started_s = time.time()
                self.origin_s = time.perf_counter()
                self.clock = monotonic_from(self.origin_s)
                telling = asyncio.create_task(self._tell())
                observations = await (self._open_loop(session) if open_loop else self._closed_loop(session))
                telling.cancel()
                ended_s = time.time()
        requests = requests_frame(observations)
        summary = summarize(
            observations,
            requests,
            self.options,
            epoch_s=(started_s, ended_s),
            max_in_flight=self.max_in_flight,
            warmup=warmup,
            hashes=(self.sample.content_hash(), replay_code_hash()),
        )
        texts = {} if self.options.force_output_lengths else {o.request_id: o.text for o in observations}
        return ReplayResult(requests, summary, texts)

    async def _tell(self) -> None:
        while self.progress is not None:
            await asyncio.sleep(PROGRESS_EVERY_S)
            self.progress(self.ended, self.in_flight, len(self.ready))

    async def _warm_up(self, session: aiohttp.ClientSession) -> tuple[int, int]:
        """Sent and failed warm-up requests; they are in no table and no number."""
        entries = warmup_entries(self.sample, self.options.warmup)
        slots = asyncio.Semaphore(self.options.concurrency or _WARMUP_IN_FLIGHT)

        async def one(entry: SampleEntry) -> bool:
            async with slots:
                seen = await self._send(session, entry, self._url(entry), self._body(entry), 0.0)
            return seen.status != "ok"

        failed = sum(await asyncio.gather(*(one(entry) for entry in entries)))
        if entries and self.options.warmup_pause_s:
            await asyncio.sleep(self.options.warmup_pause_s)
        self.max_in_flight = self.ended = 0
        return len(entries), failed

    async def _open_loop(self, session: aiohttp.ClientSession) -> list[Observation]:
        """Start every request at its recorded time, whatever became of the earlier ones."""
        first_s = self.sample.entries[0].arrival_s
        slots = asyncio.Semaphore(self.options.concurrency) if self.options.concurrency else None
        tasks: list[asyncio.Task[Observation]] = []
        async with asyncio.TaskGroup() as group:
            for entry, url, body in self.ready:
                planned_s = (entry.arrival_s - first_s) * self.options.time_scale
                while (wait_s := planned_s - self.clock()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.append(group.create_task(self._send(session, entry, url, body, planned_s, slots=slots)))
        return [task.result() for task in tasks]

    async def _closed_loop(self, session: aiohttp.ClientSession) -> list[Observation]:
        """Keep `concurrency` requests in flight, in the sample's order; planned is when a slot came free."""
        waiting = enumerate(self._passes()) if self.options.endless else enumerate(self.ready)
        results: dict[int, Observation] = {}

        async def slot() -> None:
            for number, (entry, url, body) in waiting:
                results[number] = await self._send(session, entry, url, body, self.clock())

        slots = self.options.concurrency or 1
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(slot()) for _ in range(slots if self.options.endless else min(slots, len(self.ready)))
            ]
            if self.options.endless:
                await self._until_told_to_stop()
                for task in running:  # what is under way is cut off, and is nobody's failure
                    task.cancel()
        return [results[number] for number in sorted(results)]

    def _passes(self) -> Iterator[tuple[SampleEntry, str, bytes]]:
        variant = self.options.variant
        while True:
            yield from self.ready
            variant += 1
            self.ready = self._pass(variant)

    async def _until_told_to_stop(self) -> None:
        assert self.out_dir is not None
        self.out_dir.mkdir(parents=True, exist_ok=True)
        with (self.out_dir / LIVE_FILE).open("wb", buffering=0) as file:
            while not (self.out_dir / STOP_FILE).exists():
                await asyncio.sleep(LIVE_EVERY_S)
                told, self.live = self.live, []
                file.write(b"".join(told))

    def _happened(self, at_s: float, what: int) -> None:
        if self.options.endless:  # perf_counter and monotonic are one clock on Linux, the same in every process
            self.live.append(struct.pack("<dd", self.origin_s + at_s, what))

    async def _send(
        self,
        session: aiohttp.ClientSession,
        entry: SampleEntry,
        url: str,
        body: bytes,
        planned_s: float,
        *,
        slots: asyncio.Semaphore | None = None,
    ) -> Observation:
        seen = Observation(entry.request_id, planned_s)
        if slots is not None:
            await slots.acquire()
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        headers = {"x-conversation-id": entry.conversation_id} if entry.conversation_id else None
        try:
            await stream_request(
                session,
                url,
                body,
                seen,
                clock=self.clock,
                timeout_s=self.options.timeout_s,
                headers=headers,
                forced_tokens=entry.output_tokens if self.options.force_output_lengths else None,
                recorded_prompt_tokens=entry.prompt_tokens,
                on_tokens=self._happened,
            )
            self._happened(self.clock(), 0 if seen.status == "ok" else -1)
        finally:
            self.in_flight -= 1
            self.ended += 1
            if slots is not None:
                slots.release()
        return seen


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection while measuring: a pause here would be booked as the server's latency."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
