"""Two resident engines measured against each other, span by span, in both orders (docs/decisions/0009).

With two slots both sides are saturated at once, one on each, and change slots half-way (duet with crossover). With one
slot they take turns on it in slices of seconds, the other stopped where it is (ABBA). Either way one pair holds two
spans, one in each order, and unrest that hits both sides cancels in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from infra.bench.measure import Counters, Served, Side, SideFailed, counters, stratum_path
from infra.bench.workload import STRATUM_OF, WorkloadPlan
from infra.errors import RatchetError, Unreachable
from infra.replay.process import ReplayTimedOut, run_replay_process
from infra.replay.records import ReplayResult
from infra.replay.runner import LIVE_EVERY_S, LIVE_FILE, STOP_FILE

Design = Literal["duet", "slices"]
Order = Literal["AB", "BA"]
SIDES: tuple[Side, Side] = ("baseline", "candidate")
SETTLE_S = 0.5
"""After a change of slots or of turns, before a span begins: caches and clocks settle."""
RECORDED_VARIANTS = 100_000
"""Where the variations of recorded passes begin, so that they share no text with the closed loop's."""


class SideSpan(BaseModel):
    """What one side did in one span."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(gt=0)
    tokens: int = Field(description="output tokens that arrived in it, of requests under way at its edges too")
    ok: int = Field(description="requests that ended well in it")
    failed: int
    counted: Counters = Field(default=Counters(), description="by the engine, since its last span")

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


class Span(BaseModel):
    """One stretch of a saturated loop in one order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pair: int
    order: Order
    baseline: SideSpan
    candidate: SideSpan


class RecordedSpan(BaseModel):
    """The recorded arrivals once on both sides, in one order."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    pair: int
    order: Order
    baseline: ReplayResult
    candidate: ReplayResult
    counted: dict[Side, Counters]
    folder: Path = Field(description="holds a folder for each side with its per-request results")


class Placer(Protocol):
    """What a duet asks of the bench that holds the engines."""

    @property
    def design(self) -> Design:
        """duet or slices."""
        ...

    def place(self, order: Order) -> None:
        """Engines on their slots in this order."""
        ...

    def alone(self, side: Side | None) -> None:
        """One side runs alone; None: both."""
        ...


def orders_of(pair: int) -> tuple[Order, Order]:
    """AB BA, BA AB, …: each pair begins where the last one ended, so that engines move once a pair."""
    return ("AB", "BA") if pair % 2 == 0 else ("BA", "AB")


class Duet:
    """Two engines of one bench, with a client for each."""

    def __init__(
        self, bench: Placer, baseline: Served, candidate: Served, folder: Path, *, client_cores: Sequence[int] = ()
    ) -> None:
        self._bench = bench
        self._served: dict[Side, Served] = {"baseline": baseline, "candidate": candidate}
        self._folder = folder
        self._cores = tuple(client_cores)
        self._counters: dict[Side, Counters] = {}

    def closed(self, sample_path: Path, plan: WorkloadPlan, span_s: float) -> Iterator[tuple[Span, Span]]:
        """Pairs of a saturated closed loop, without end; close the iterator to stop. What is sent before the first span
        warms both sides up and is not counted.

        Raises:
            SideFailed: a side did not answer, or its replay ended; it names the side.
        """
        with self._streams(sample_path, plan) as streams:
            try:
                _warm(streams, plan.options.warmup, plan.limit_s)
                for side in SIDES:
                    self._counted(side)
                pair = 0
                while True:
                    first, second = (self._span(streams, order, pair, span_s) for order in orders_of(pair))
                    yield first, second
                    pair += 1
            finally:
                self._bench.alone(None)

    def recorded(self, sample_path: Path, plan: WorkloadPlan) -> Iterator[tuple[RecordedSpan, RecordedSpan]]:
        """Pairs of replays at recorded load, without end.

        Raises:
            SideFailed: a side did not answer, or took longer than its limit; it names the side.
        """
        pair = 0
        while True:
            first, second = (self._replayed(sample_path, plan, order, pair) for order in orders_of(pair))
            yield first, second
            pair += 1

    def _span(self, streams: dict[Side, _Stream], order: Order, pair: int, span_s: float) -> Span:
        self._bench.place(order)
        counted: dict[Side, Counters] = {}
        stretches: dict[Side, tuple[float, float]] = {}
        if self._bench.design == "duet":
            stretches = dict.fromkeys(SIDES, _stretch(streams, span_s))
            counted = {side: self._counted(side) for side in SIDES}
        else:
            for side in SIDES if order == "AB" else SIDES[::-1]:
                self._bench.alone(side)
                stretches[side] = _stretch({side: streams[side]}, span_s)
                counted[side] = self._counted(side)  # a side that is held does not answer
        time.sleep(3 * LIVE_EVERY_S)  # until what came in the span is written
        found = {side: streams[side].count(*stretches[side], counted[side]) for side in SIDES}
        return Span(pair=pair, order=order, baseline=found["baseline"], candidate=found["candidate"])

    def _counted(self, side: Side) -> Counters:
        """What one engine counted since it was asked last."""
        try:
            now = counters(self._served[side])
        except Unreachable as fault:
            raise SideFailed(side, fault) from fault
        before, self._counters[side] = self._counters.get(side, now), now
        return now.since(before)

    def _replayed(self, sample_path: Path, plan: WorkloadPlan, order: Order, pair: int) -> RecordedSpan:
        folder = self._folder / f"{plan.workload}-{pair}-{order}"
        variant = RECORDED_VARIANTS + 2 * pair + (order != orders_of(pair)[0])
        options = plan.options.model_copy(update={"variant": variant, "warmup": 0})
        self._bench.place(order)
        time.sleep(SETTLE_S)
        for side in SIDES:
            self._counted(side)

        def one(side: Side) -> ReplayResult:
            served = self._served[side]
            try:
                return run_replay_process(
                    sample_path, f"{served.root_url}/v1", served.model, folder / side,
                    cores=self._cores, options=options, process_timeout_s=plan.limit_s, lane=side,
                )  # fmt: skip
            except (Unreachable, ReplayTimedOut) as fault:
                raise SideFailed(side, fault) from fault

        if self._bench.design == "duet":
            with ThreadPoolExecutor(2) as pool:
                baseline, candidate = pool.map(one, SIDES)
        else:
            by_turns = {side: one(side) for side in (SIDES if order == "AB" else SIDES[::-1])}
            baseline, candidate = by_turns["baseline"], by_turns["candidate"]
        counted = {side: self._counted(side) for side in SIDES}
        return RecordedSpan(
            pair=pair, order=order, baseline=baseline, candidate=candidate, counted=counted, folder=folder
        )

    @contextmanager
    def _streams(self, sample_path: Path, plan: WorkloadPlan) -> Iterator[dict[Side, _Stream]]:
        with ExitStack() as running:
            streams: dict[Side, _Stream] = {}
            for side in SIDES:
                stratum = STRATUM_OF.get(plan.workload)
                path = sample_path if stratum is None else stratum_path(sample_path, stratum)
                stream = _Stream(side, self._served[side], path, plan, self._folder / plan.workload / side)
                stream.start(self._cores)
                running.callback(stream.stop)
                streams[side] = stream
            running.callback(self._bench.alone, None)  # a side that is held cannot end
            yield streams


class _Stream:
    """One side's endless closed loop, and what it has told so far."""

    def __init__(self, side: Side, served: Served, sample_path: Path, plan: WorkloadPlan, folder: Path) -> None:
        self.side, self._served, self._sample, self._plan, self._folder = side, served, sample_path, plan, folder
        self._fault: RatchetError | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"{side} stream", daemon=True)
        self._cores: tuple[int, ...] = ()

    def start(self, cores: tuple[int, ...]) -> None:
        """Begin to load the side."""
        self._cores = cores
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / LIVE_FILE).unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop; what was under way is cut off."""
        (self._folder / STOP_FILE).touch()
        self._thread.join(60)

    def check(self) -> None:
        """Raises SideFailed when the loop ended by itself."""
        if self._fault is not None:
            raise SideFailed(self.side, self._fault) from self._fault
        if self._ended:
            raise SideFailed(self.side, RatchetError("its replay ended before it was told to"))

    def live(self) -> NDArray[np.float64]:
        """Rows of (moment, what) as LIVE_FILE holds them."""
        file = self._folder / LIVE_FILE
        if not file.exists():
            return np.empty((0, 2))
        raw = file.read_bytes()
        return np.frombuffer(raw[: len(raw) // 16 * 16], dtype="<f8").reshape(-1, 2)

    def count(self, began_s: float, ended_s: float, counted: Counters) -> SideSpan:
        """What happened in one stretch of the machine's monotonic clock."""
        rows = self.live()
        what = rows[(rows[:, 0] >= began_s) & (rows[:, 0] < ended_s), 1]
        return SideSpan(
            seconds=ended_s - began_s,
            tokens=int(what[what > 0].sum()),
            ok=int((what == 0).sum()),
            failed=int((what < 0).sum()),
            counted=counted,
        )

    def _run(self) -> None:
        options = self._plan.options.model_copy(update={"endless": True, "warmup": 0})
        try:
            run_replay_process(
                self._sample, f"{self._served.root_url}/v1", self._served.model, self._folder,
                cores=self._cores, options=options, process_timeout_s=self._plan.limit_s, lane=self.side,
            )  # fmt: skip
        except RatchetError as fault:
            self._fault = fault
        finally:
            self._ended = True


def _stretch(streams: dict[Side, _Stream], span_s: float) -> tuple[float, float]:
    time.sleep(SETTLE_S)
    began_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + span_s:
        for stream in streams.values():
            stream.check()
        time.sleep(min(0.2, began_s + span_s - now_s + 0.001))
    return began_s, time.monotonic()


def _warm(streams: dict[Side, _Stream], requests: int, limit_s: float) -> None:
    """Wait until each side has ended `requests` requests, and at least one."""
    deadline = time.monotonic() + limit_s
    for side, stream in streams.items():
        while int((stream.live()[:, 1] <= 0).sum()) < max(1, requests):
            stream.check()
            if time.monotonic() > deadline:
                raise SideFailed(side, RatchetError(f"it did not end {requests} requests within {limit_s:.0f} s"))
            time.sleep(LIVE_EVERY_S)
