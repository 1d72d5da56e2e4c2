"""What the whole pool looks like, in bounded memory: counts per stratum, prefix reuse, burstiness.

Exact up to a limit of distinct keys, an estimate beyond it (relative error about 1/sqrt(limit/2), 0.3 % at
the default), and the same whatever the order of the objects; partial pools merge.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

DEFAULT_DISTINCT_LIMIT = 1 << 18
_SPACE = 1 << 64


class DistinctSketch:
    """Distinct 64-bit keys with a value each; beyond `limit` only keys below a falling threshold are kept.

    This is Wegman's adaptive sampling: a kept key stands for `2**level` keys.
    """

    def __init__(self, limit: int = DEFAULT_DISTINCT_LIMIT) -> None:
        self.limit = limit
        self.level = 0
        self.kept: dict[int, Any] = {}

    def holds(self, key: int) -> bool:
        """Whether `key` is below the present threshold."""
        return key < _SPACE >> self.level

    def put(self, key: int, value: Any) -> None:
        """Set the value of `key` if the sketch keeps it."""
        if self.holds(key):
            self.kept[key] = value
            self.shrink()

    def shrink(self) -> None:
        """Halve the share that is kept until the limit is met."""
        while len(self.kept) > self.limit:
            self.level += 1
            self.kept = {key: value for key, value in self.kept.items() if self.holds(key)}

    def lower_to(self, level: int) -> None:
        """Keep no more than a sketch of that level keeps."""
        if level > self.level:
            self.level = level
            self.kept = {key: value for key, value in self.kept.items() if self.holds(key)}

    @property
    def scale(self) -> int:
        """How many keys one kept key stands for."""
        return 1 << self.level


class PrefixUse:
    """Share of the prompt that an ideal, endless prefix cache would already hold.

    reuse = 1 - (length of the distinct prefix units) / (length of all units). A unit is a message with
    everything before it (length in characters), or a block id with everything before it (length in tokens).
    Reuse inside a message that differs only at its end is not seen.
    """

    def __init__(self, limit: int = DEFAULT_DISTINCT_LIMIT) -> None:
        self.total = 0
        self.distinct = DistinctSketch(limit)

    def add(
        self, messages: Sequence[dict[str, Any]] | None, block_ids: Sequence[int] | None, block_tokens: int
    ) -> None:
        """Count one prompt."""
        chain = b""
        units: Iterable[tuple[str, int]] = ()
        if messages:
            units = ((text, len(text)) for text in (f"{m.get('role')}\0{m.get('content')}" for m in messages))
        elif block_ids:
            units = ((str(block), block_tokens) for block in block_ids)
        for text, length in units:
            chain = hashlib.blake2b(chain + text.encode(errors="surrogatepass"), digest_size=8).digest()
            self.total += length
            self.distinct.put(int.from_bytes(chain, "big"), length)

    def merge(self, other: PrefixUse) -> None:
        """Add another part of the pool."""
        self.total += other.total
        self.distinct.lower_to(other.distinct.level)
        for key, value in other.distinct.kept.items():
            self.distinct.put(key, value)

    def reuse(self) -> float | None:
        """The share, 0 to 1; None for an empty pool."""
        if not self.total:
            return None
        distinct: int = sum(self.distinct.kept.values()) * self.distinct.scale
        return max(0.0, 1.0 - distinct / self.total)


class PoolCount:
    """Logical requests per stratum, conversations, arrivals and prefix use of everything that was read."""

    def __init__(self, limit: int = DEFAULT_DISTINCT_LIMIT) -> None:
        self.requests = DistinctSketch(limit)  # logical key -> (rank of its best attempt, stratum, copies)
        self.units = DistinctSketch(limit)
        self.prefixes = PrefixUse(limit)
        self.arrivals_s = array("d")

    def add(self, unit: int, logical: int, rank: tuple[float, ...], stratum: str, copies: int) -> None:
        """Count one attempt.

        The attempt of the highest rank decides a request's stratum. `copies` is 0 for a line with an id, where a
        repeat is another attempt, and 1 for a line without one, where a repeat is another request.
        """
        self.units.put(unit, None)
        if self.requests.holds(logical):
            self._join(logical, (rank, stratum, copies))

    def merge(self, other: PoolCount) -> None:
        """Add another part of the pool."""
        self.units.lower_to(other.units.level)
        for key in other.units.kept:
            self.units.put(key, None)
        self.requests.lower_to(other.requests.level)
        for key, value in other.requests.kept.items():
            self._join(key, value)
        self.prefixes.merge(other.prefixes)
        self.arrivals_s.extend(other.arrivals_s)

    def _join(self, key: int, value: tuple[tuple[float, ...], str, int]) -> None:
        known = self.requests.kept.get(key)
        if known is not None:
            value = (*max(known[:2], value[:2]), known[2] + value[2])
        self.requests.put(key, value)

    def per_stratum(self) -> dict[str, int]:
        """Logical requests per stratum (an estimate when `estimated`)."""
        counts: dict[str, int] = {}
        for _, stratum, copies in self.requests.kept.values():
            counts[stratum] = counts.get(stratum, 0) + max(1, copies) * self.requests.scale
        return counts

    @property
    def estimated(self) -> bool:
        """Whether the counts are estimates."""
        return self.requests.level > 0


def inter_arrival_cv(arrivals_s: Iterable[float]) -> float | None:
    """Coefficient of variation of the gaps between arrivals (Poisson: 1); None below 3 arrivals."""
    ordered = sorted(arrivals_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    if len(gaps) < 2 or not (mean := statistics.fmean(gaps)):
        return None
    return statistics.pstdev(gaps, mean) / mean


def arrivals_that_coincide(arrivals_s: Iterable[float]) -> float:
    """Share of arrivals at exactly the time of another one: high where a log has coarse timestamps."""
    ordered = sorted(arrivals_s)
    if len(ordered) < 2:
        return 0.0
    return sum(a == b for a, b in itertools.pairwise(ordered)) / (len(ordered) - 1)
