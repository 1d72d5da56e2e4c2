"""Send one streamed request and keep planned, sent, first token, last token and end apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp

from infra.replay.records import Status
from infra.replay.stream import CompletionStream

# Servers close idle connections after 5 s (uvicorn); reusing one a moment later fails by our own fault.
_KEEPALIVE_S = 2.0
_READ_BYTES = 1 << 18


@dataclass(slots=True)
class Observation:
    """One request as the client saw it; seconds from the start of the replay."""

    request_id: str
    planned_s: float
    sent_s: float | None = None
    end_s: float | None = None
    status: Status = "not_sent"
    http_status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_estimated: bool = False
    cached_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    text_sha256: str | None = None
    error: str | None = None
    chunk_times_s: list[float] = field(default_factory=list)


def open_session(max_connections: int | None) -> aiohttp.ClientSession:
    """A session whose pool is never the bottleneck: as many connections as requests, or without a limit.

    aiohttp's default of 100 makes 200 streams behave like 100 (case LG1). Must be called in a running loop.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_note_sent)
    connector = aiohttp.TCPConnector(
        limit=max_connections or 0, limit_per_host=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=3600
    )
    return aiohttp.ClientSession(
        connector=connector,
        trace_configs=[trace],
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_READ_BYTES,
        auto_decompress=True,
    )


async def _note_sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    # waiting for a connection is the client's delay, so a request counts as sent when its headers are written
    if callable(context.trace_request_ctx):
        context.trace_request_ctx()


async def stream_request(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    observation: Observation,
    *,
    clock: Callable[[], float],
    timeout_s: float,
    headers: dict[str, str] | None = None,
    forced_tokens: int | None = None,
    recorded_prompt_tokens: int | None = None,
    on_tokens: Callable[[float, int], None] | None = None,
) -> None:
    """Send `body` (JSON) to `url` and fill `observation`. Never raises for what server or network do.

    `clock` gives seconds from the start of the replay; `on_tokens` is told of output tokens as they come. Nothing is
    retried: a retry would hide a failure.
    """
    stream = CompletionStream(on_tokens)
    sent_headers = {"Content-Type": "application/json", **(headers or {})}

    def sent() -> None:
        observation.sent_s = clock()

    try:
        async with asyncio.timeout(timeout_s):
            async with session.post(url, data=body, headers=sent_headers, trace_request_ctx=sent) as response:
                observation.http_status = response.status
                if response.status != 200:
                    detail = (await response.content.read(2000)).decode(errors="replace")
                    observation.status, observation.error = (
                        "http_error",
                        f"HTTP {response.status}: {detail[:300]}",
                    )
                elif "event-stream" not in response.headers.get("Content-Type", "event-stream"):
                    detail = (await response.content.read(2000)).decode(errors="replace")
                    observation.status, observation.error = "stream_error", f"not a stream: {detail[:300]}"
                else:
                    async for data in response.content.iter_any():
                        stream.feed(data, clock())
                    stream.close(clock())
                    observation.status, observation.error = stream.status()
    except TimeoutError:
        observation.status = "timeout" if observation.sent_s is not None else "not_sent"
        observation.error = f"no end after {timeout_s:g} s"
    except asyncio.CancelledError:
        observation.status, observation.error = "cut", "the replay was stopped"
        raise
    except Exception as error:  # whatever a server or the network can cause is this request's result
        _broken(observation, stream, error)
    finally:
        observation.end_s = clock()
        _settle(observation, stream, forced_tokens, recorded_prompt_tokens)


def _broken(observation: Observation, stream: CompletionStream, error: Exception) -> None:
    observation.error = f"{type(error).__name__}: {error}"[:300]
    if observation.sent_s is None:
        observation.status = "not_sent"
    elif stream.error is not None:  # the error event came first; the reset is its consequence
        observation.status, observation.error = "stream_error", stream.error
    else:
        observation.status = "cut"


def _settle(
    observation: Observation,
    stream: CompletionStream,
    forced_tokens: int | None,
    recorded_prompt_tokens: int | None,
) -> None:
    observation.finish_reason = stream.finish_reason
    observation.cached_tokens = stream.cached_tokens
    observation.chunk_times_s = stream.chunk_times_s
    observation.text = stream.text
    observation.prompt_tokens = stream.prompt_tokens
    observation.output_tokens = stream.counted_tokens
    if observation.chunk_times_s or observation.status == "ok":
        observation.text_sha256 = stream.text_sha256
        if stream.counted_tokens is None:
            observation.tokens_estimated = True
            observation.output_tokens = stream.estimated_output_tokens(forced_tokens)
        if stream.prompt_tokens is None:
            observation.tokens_estimated = True
            observation.prompt_tokens = recorded_prompt_tokens


def monotonic_from(start: float) -> Callable[[], float]:
    """A clock that reads seconds since `start` (a reading of time.perf_counter)."""
    return lambda: time.perf_counter() - start
