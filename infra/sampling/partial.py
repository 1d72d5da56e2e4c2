"""The part of a draw that reads objects: keeps the conversations that may be taken and counts the whole pool.

A partial draw depends only on the plan and on what it read, and partial draws merge to the same result in any
order and any grouping, so objects can be read in parallel.
"""

from __future__ import annotations

import hashlib
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.errors import BadInput
from infra.sampling.logged import LineFaults, LoggedRequest, read_logged
from infra.sampling.objects import ObjectSource
from infra.sampling.pool import PoolCount
from infra.sampling.sample import DEFAULT_STRATA, Stratum, stratum_of

HASH_SPACE = 1 << 64
THINNED = ""  # the cell of everything that no quota governs


class DrawPlan(BaseModel):
    """What to draw. Exactly one of `n` and `share`, unless quotas name every stratum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=1 << 63)
    n: int | None = Field(default=None, ge=1, description="requests; whole conversations until n is met")
    share: float | None = Field(default=None, gt=0, le=1, description="share of the conversations, 0 to 1")
    strata: tuple[Stratum, ...] = DEFAULT_STRATA
    quotas: dict[str, int] = Field(default_factory=dict, description="stratum to exact number of requests")
    window: tuple[float, float] | None = Field(default=None, description="seconds, [start, end)")
    held_out: bool = False
    policy: Literal["shrink", "fail"] = "shrink"
    source: str = Field(default="the given objects", description="prefix or path, for messages")
    bad_lines_allowed: int = Field(default=10, ge=0, description="absolute; a draw fails beyond both limits")
    bad_line_share_allowed: float = Field(default=0.01, ge=0, le=1)

    @model_validator(mode="after")
    def _is_one_question(self) -> Self:
        unknown = set(self.quotas) - {s.name for s in self.strata}
        if unknown:
            raise ValueError(f"quotas name no stratum: {', '.join(sorted(unknown))}")
        if any(quota < 1 for quota in self.quotas.values()):
            raise ValueError("a quota is at least 1")
        if self.n is not None and self.share is not None:
            raise ValueError("give n or share, not both")
        if self.n is None and self.share is None and len(self.quotas) < len(self.strata):
            raise ValueError("give n or share (or a quota for every stratum)")
        if self.n is not None and sum(self.quotas.values()) > self.n:
            raise ValueError(
                f"the quotas add up to {sum(self.quotas.values())}, more than n={self.n}: a "
                "total that cuts quotas would decide by order of strata"
            )
        if self.share is not None and self.held_out and self.share > 0.5:
            raise ValueError("a held-out sample needs what the first one left: share at most 0.5")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError(f"the window {self.window} is empty")
        return self

    @property
    def thinned_n(self) -> int | None:
        """Requests that thinning provides: n without what the quotas provide. None with `share`."""
        return None if self.n is None else self.n - sum(self.quotas.values())


def keyed_hash(seed: int, *parts: str) -> int:
    """64 bits of blake2b keyed with the seed; the same on every machine."""
    digest = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "big"))
    digest.update("\0".join(parts).encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest(), "big")


class Attempts:
    """All lines of one logical request: the best attempt, the first arrival, and the number of lines."""

    __slots__ = ("best", "count", "first_s")

    def __init__(self, request: LoggedRequest) -> None:
        self.best = request
        self.first_s = request.t_s
        self.count = 1

    def add(self, other: Attempts) -> None:
        """Join more attempts: the successful one wins, then the longest output, then the latest."""
        self.best = max(self.best, other.best, key=_rank)
        self.first_s = min(self.first_s, other.first_s)
        self.count += other.count


class Cell:
    """The conversations with the smallest hashes; enough to hold `need` requests, no more than it must."""

    def __init__(self, need: int | None, low: int = 0, high: int = HASH_SPACE) -> None:
        self.need = need  # requests that can be replayed; None keeps the whole interval
        self.low = low
        self.high = high
        self.units: dict[int, dict[bytes, Attempts]] = {}
        self.rows = 0

    def put(self, unit: int, key: bytes, attempts: Attempts) -> None:
        """Add attempts of one request of the conversation with hash `unit`."""
        if not self.low <= unit < self.high:
            return
        requests = self.units.setdefault(unit, {})
        if key in requests:
            requests[key].add(attempts)
        else:
            requests[key] = attempts
        self.rows += 1
        if self.need is not None and self.rows > 4 * self.need + 1024:
            self.trim()

    def trim(self) -> None:
        """Drop the conversations with the largest hashes that the draw can no longer reach."""
        if self.need is None:
            return
        covered, rows = 0, 0
        for unit in sorted(self.units):
            if covered >= self.need:
                self.high = min(self.high, unit)
                break
            covered += sum(can_replay(a.best) for a in self.units[unit].values())
            rows += sum(a.count for a in self.units[unit].values())
        self.units = {unit: requests for unit, requests in self.units.items() if unit < self.high}
        self.rows = rows


class PartialDraw:
    """What some of the objects gave. Picklable; merge any number, then `finish_draw`."""

    def __init__(self, plan: DrawPlan) -> None:
        self.plan = plan
        self.pool = PoolCount()
        self.faults = LineFaults()
        self.outside_window = 0
        self.missing_ids = 0
        rounds = 2 if plan.held_out else 1
        self.cells = {name: Cell(quota * rounds) for name, quota in plan.quotas.items()}
        if plan.share is not None:
            step = int(plan.share * HASH_SPACE)
            low = step if plan.held_out else 0
            self.cells[THINNED] = Cell(None, low, min(low + step, HASH_SPACE))
        elif plan.thinned_n:
            self.cells[THINNED] = Cell(plan.thinned_n * rounds)

    def read(self, objects: ObjectSource) -> Self:
        """Read objects into this draw; returns itself."""
        for name, data in objects:
            for request in read_logged(name, data, self.faults):
                self._take(request)
        return self

    def merge(self, other: PartialDraw) -> Self:
        """Join another part of the same plan; returns itself. BadInput when the plans differ."""
        if other.plan != self.plan:
            raise BadInput("parts of two different draws cannot be merged", remedy="Draw both with one plan")
        self.pool.merge(other.pool)
        self.faults.add(other.faults)
        self.outside_window += other.outside_window
        self.missing_ids += other.missing_ids
        for name, cell in other.cells.items():
            mine = self.cells[name]
            mine.high = min(mine.high, cell.high)
            mine.units = {unit: requests for unit, requests in mine.units.items() if unit < mine.high}
            for unit, requests in cell.units.items():
                for key, attempts in requests.items():
                    mine.put(unit, key, attempts)
        return self

    def _take(self, request: LoggedRequest) -> None:
        window = self.plan.window
        if window is not None and not window[0] <= request.t_s < window[1]:
            self.outside_window += 1
            return
        content = request.content_digest() if request.messages or request.block_ids else b""
        if request.request_id is None:
            self.missing_ids += 1
            identity = made_id(request)
        else:
            identity = request.request_id
        unit_key = ("c", request.conversation_id) if request.conversation_id else ("r", identity)
        unit = keyed_hash(self.plan.seed, *unit_key)
        key = hashlib.blake2b(
            "\0".join((*unit_key, identity)).encode(errors="surrogatepass") + content, digest_size=16
        ).digest()
        stratum = self._stratum(request)
        self.pool.add(
            unit,
            int.from_bytes(key[:8], "big"),
            _rank(request),
            stratum,
            copies=1 if request.request_id is None else 0,
        )
        self.pool.arrivals_s.append(request.t_s)
        self.pool.prefixes.add(request.messages, request.block_ids, request.block_tokens)
        cell = self.cells.get(stratum if stratum in self.plan.quotas else THINNED)
        if cell is not None:
            cell.put(unit, key, Attempts(request))

    def join_attempts(self) -> None:
        """Bring attempts of one request that lie in several cells together where the best one is. Attempts fall into
        different cells when their prompt counts lie on both sides of a stratum's bound."""
        homes: dict[tuple[int, bytes], str] = {}
        for name, cell in self.cells.items():
            for unit, requests in cell.units.items():
                for key in list(requests):
                    home = homes.setdefault((unit, key), name)
                    if home == name:
                        continue
                    both = self.cells[home].units[unit].pop(key)
                    both.add(requests.pop(key))
                    stratum = self._stratum(both.best)
                    homes[unit, key] = best = stratum if stratum in self.plan.quotas else THINNED
                    if best in self.cells and self.cells[best].low <= unit < self.cells[best].high:
                        self.cells[best].units.setdefault(unit, {})[key] = both

    def _stratum(self, request: LoggedRequest) -> str:
        tokens = request.prompt_tokens
        if tokens is None and request.messages:
            # a failed attempt often has no count; four characters a token place it near its retry
            tokens = sum(len(str(m.get("content", ""))) for m in request.messages) // 4
        return "" if tokens is None else stratum_of(tokens, self.plan.strata)


def can_replay(request: LoggedRequest) -> bool:
    """Whether a replay can force the recorded lengths: both counts known and at least one output token."""
    return request.prompt_tokens is not None and bool(request.output_tokens)


def made_id(request: LoggedRequest) -> str:
    """The id of a line that has none: a hash of its content and time (case SA2)."""
    digest = hashlib.blake2b(request.content_digest(), digest_size=12)
    digest.update(f"{request.t_s!r} {request.prompt_tokens} {request.output_tokens}".encode())
    return f"made-{digest.hexdigest()}"


def _rank(request: LoggedRequest) -> tuple[float, ...]:
    return (
        request.ok and can_replay(request),
        request.output_tokens or 0,
        request.t_s,
        request.prompt_tokens or 0,
    )
