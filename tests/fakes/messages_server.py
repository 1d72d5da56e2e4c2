"""A small Messages API server that gives scripted answers and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from aiohttp import web


def answer(text: str, *, stop_reason: str = "end_turn", tokens: tuple[int, int] = (100, 50)) -> dict[str, Any]:
    """The body of a 200 answer."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }


class MessagesServer:
    """Serves on a free port of 127.0.0.1; each request takes the next script entry, the last one is repeated.

    An entry is a body for status 200, or (status, body or text).
    """

    def __init__(self, script: Iterable[dict[str, Any] | tuple[int, dict[str, Any] | str]]) -> None:
        self._script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    async def _messages(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        entry = self._script[min(len(self.requests), len(self._script)) - 1]
        status, body = entry if isinstance(entry, tuple) else (200, entry)
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html")
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", self._messages)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def __enter__(self) -> MessagesServer:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake Messages server did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
