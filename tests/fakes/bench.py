"""A sandbox whose engines are stubs of known speed: for faults and for campaigns that CI can afford."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from infra.bench.engines import Sides
from infra.bench.measure import Served
from infra.engine.config import ServingConfig
from infra.store import ObjectStore
from tests.fakes.stub_llm import StubLLM, StubTiming, prompt_text


class StubServer(StubLLM):
    """The stub with what a bench asks of an engine beside completions: an emptied cache, answers without a stream."""

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/reset_prefix_cache", self._reset)

    async def _metrics(self, _: web.Request) -> web.Response:
        counted = {"queries": self.prefix_queries, "hits": self.prefix_hits}
        lines = [
            f"# TYPE vllm:prefix_cache_{name}_total counter\nvllm:prefix_cache_{name}_total {value}\n"
            for name, value in counted.items()
        ]
        return web.Response(text="".join(lines))

    async def _reset(self, _: web.Request) -> web.Response:
        self._seen.clear()
        return web.Response()

    async def _answer(self, request: web.Request, body: dict) -> web.StreamResponse:
        if body.get("stream"):
            return await super()._answer(request, body)
        limit = self.timing.reject_prompts_from_tokens
        words = len(prompt_text(body).split())
        if limit is not None and words >= limit:
            return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)
        answer = {"message": {"content": f"an answer to {words} words"}, "finish_reason": "stop"}
        return web.json_response({"choices": [answer]})


class StubBench:
    """Stands where `infra.bench.engines.Bench` does. `pairs` holds the candidates in order of their start."""

    context_tokens = 512

    def __init__(self, timing_of: Callable[[ServingConfig], StubTiming], dies_at: int | None = None) -> None:
        self.timing_of = timing_of
        self.dies_at = dies_at
        self.pairs: list[ServingConfig] = []
        self._servers: dict[str, StubServer] = {}

    @contextmanager
    def open(self, _: object) -> Iterator[StubBench]:
        """What `open_bench` is replaced by."""
        yield self

    def prepare(self, config: ServingConfig) -> None:
        pass

    design = "duet"

    def place(self, order: str) -> None:
        pass

    def alone(self, side: str | None) -> None:
        pass

    def pair(self, baseline: ServingConfig, candidate: ServingConfig, *, fresh: bool = False) -> Sides:
        if len(self.pairs) == self.dies_at and candidate != baseline:
            self.dies_at = None
            raise MemoryError("the campaign's process ends here")
        if candidate != baseline:  # the A/A run is no trial
            self.pairs.append(candidate)
        return Sides(baseline=self._served("baseline", baseline), candidate=self._served("candidate", candidate))

    def _served(self, side: str, config: ServingConfig) -> Served:
        self._stop(side)
        server = self._servers[side] = StubServer(self.timing_of(config))
        server.__enter__()
        return Served(root_url=server.base_url.removesuffix("/v1"), model="stub", pid=os.getpid())

    def _stop(self, side: str) -> None:
        if (server := self._servers.pop(side, None)) is not None:
            server.__exit__(None, None, None)

    def peak_memory(self, side: str) -> float:
        return 1e9

    def candidate_death(self) -> None:
        return None

    def still_alive(self) -> None:
        pass

    def keep_log(self, store: ObjectStore, campaign: str) -> str:
        return ""

    def stop_candidate(self) -> None:
        self._stop("candidate")

    def close(self) -> None:
        for side in list(self._servers):
            self._stop(side)
