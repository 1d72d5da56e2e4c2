"""An OpenAI-compatible server of known timing, with faults on demand.

Timing is set by `StubTiming`, faults per request by a marker in the prompt: `[[fault:NAME]]`. The stub
runs on its own thread and loop; `with StubLLM() as stub: stub.base_url …`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FAULTS = (
    "http_503",
    "http_400",
    "stream_error",
    "error_then_reset",
    "cut",
    "no_done",
    "no_finish",
    "reset",
    "hang",
    "no_usage",
    "no_tokens",
    "abort",
    "two_usages",
    "silent_tokens",
    "json_answer",
    "one_byte",
    "crlf",
)


@dataclass
class StubTiming:
    """How the stub behaves."""

    first_token_s: float = 0.0
    token_gap_s: float = 0.0
    tokens_per_chunk: int = 1
    seen_factor: float = 1.0  # time to first token is divided by it for a prompt that was seen before
    slots: int | None = None  # requests served at once; the others wait
    reject_prompts_from_tokens: int | None = None  # HTTP 400, as a server with a shorter max_model_len does
    answer_tokens: int | None = None  # answers this many tokens whatever was asked for


@dataclass
class StubLLM:
    """The server; `bodies` holds every request body in order of arrival."""

    timing: StubTiming = field(default_factory=StubTiming)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    max_concurrent: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    base_url: str = ""

    def __enter__(self) -> StubLLM:
        self._concurrent = 0
        self._seen: set[tuple[str, str]] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the stub did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._slots = asyncio.Semaphore(self.timing.slots or 1_000_000)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        self.routes(app)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def routes(self, app: web.Application) -> None:
        """Further routes, for a subclass."""

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f"vllm:prefix_cache_queries_total {self.prefix_queries}\n"
            f"vllm:prefix_cache_hits_total {self.prefix_hits}\n"
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        try:
            async with self._slots:
                return await self._answer(request, body)
        finally:
            self._concurrent -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt = prompt_text(body)
        fault = next((name for name in FAULTS if f"[[fault:{name}]]" in prompt), "")
        prompt_tokens = len(prompt.split())
        limit = self.timing.reject_prompts_from_tokens
        if fault == "http_503":
            return web.json_response({"error": {"message": "overloaded", "code": 503}}, status=503)
        if fault == "http_400" or (limit is not None and prompt_tokens >= limit):
            return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)
        if fault == "json_answer":
            return web.json_response({"error": {"message": "no stream today"}})
        if fault == "hang":
            await asyncio.sleep(3600)
        seen = self._look_up(body, prompt, prompt_tokens)
        stream = _Events(request, chat="messages" in body, fault=fault)
        await stream.open()
        await asyncio.sleep(self.timing.first_token_s / (self.timing.seen_factor if seen else 1))
        tokens = self.timing.answer_tokens or body.get("max_tokens") or body.get("max_completion_tokens") or 8
        await self._tokens(stream, tokens, fault)
        if await stream.break_off():
            return stream.response
        if fault != "no_finish":
            forced = body.get("ignore_eos") and self.timing.answer_tokens is None
            await stream.finish("abort" if fault == "abort" else "length" if forced else "stop")
        if fault != "no_usage":
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 0 if fault == "no_tokens" else tokens,
                "prompt_tokens_details": {"cached_tokens": prompt_tokens if seen else 0},
            }
            if fault == "two_usages":
                await stream.event({"choices": [], "usage": {**usage, "completion_tokens": 1}})
            await stream.event({"choices": [], "usage": usage})
        if fault != "no_done":
            await stream.raw(b"data: [DONE]\n\n")
        await stream.response.write_eof()
        return stream.response

    async def _tokens(self, stream: _Events, tokens: int, fault: str) -> None:
        if fault == "no_tokens":
            return
        if fault in {"stream_error", "error_then_reset", "cut", "reset"}:
            tokens = 2
        next_s = time.monotonic()
        for start in range(0, tokens, self.timing.tokens_per_chunk):
            count = min(self.timing.tokens_per_chunk, tokens - start)
            silent = fault == "silent_tokens" and start >= tokens // 2
            await stream.tokens("" if silent else "wörd " * count)
            next_s += self.timing.token_gap_s
            if (wait_s := next_s - time.monotonic()) > 0 and start + count < tokens:
                await asyncio.sleep(wait_s)

    def _look_up(self, body: dict[str, Any], prompt: str, prompt_tokens: int) -> bool:
        key = (str(body.get("cache_salt", "")), prompt)
        seen = key in self._seen
        self._seen.add(key)
        self.prefix_queries += prompt_tokens
        self.prefix_hits += prompt_tokens if seen else 0
        return seen


def prompt_text(body: dict[str, Any]) -> str:
    """All text of a request's prompt; token ids become words."""
    if "messages" in body:
        return " ".join(str(message["content"]) for message in body["messages"])
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else " ".join(str(token) for token in prompt)


class _Events:
    """Writes server-sent events, well or badly."""

    def __init__(self, request: web.Request, *, chat: bool, fault: str) -> None:
        self.request = request
        self.chat = chat
        self.fault = fault
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})

    async def open(self) -> None:
        await self.response.prepare(self.request)
        if self.chat:
            await self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})

    async def tokens(self, text: str) -> None:
        piece = {"delta": {"content": text}} if self.chat else {"text": text}
        await self.event({"choices": [{"index": 0, **piece, "finish_reason": None}]})

    async def finish(self, reason: str) -> None:
        piece = {"delta": {}} if self.chat else {"text": ""}
        await self.event({"choices": [{"index": 0, **piece, "finish_reason": reason}]})

    async def break_off(self) -> bool:
        if self.fault in {"stream_error", "error_then_reset"}:
            await self.event({"error": {"code": 500, "message": "EngineCore died"}})
        if self.fault == "stream_error":
            await self.raw(b"data: [DONE]\n\n")
        if self.fault in {"stream_error", "cut"}:
            await self.response.write_eof()
            return True
        if self.fault in {"reset", "error_then_reset"}:
            await asyncio.sleep(0.05)
            assert self.request.transport is not None
            self.request.transport.abort()
            return True
        return False

    async def event(self, body: dict[str, Any]) -> None:
        end = "\r\n\r\n" if self.fault == "crlf" else "\n\n"
        await self.raw(f"data: {json.dumps(body, ensure_ascii=False)}{end}".encode())

    async def raw(self, data: bytes) -> None:
        if self.fault != "one_byte":
            await self.response.write(data)
            return
        for i in range(len(data)):
            await self.response.write(data[i : i + 1])
