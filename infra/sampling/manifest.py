"""What a sample says about itself: how it was drawn, what was left out, and how it differs from its pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.errors import RatchetError
from infra.sampling.files import write_atomically


class EmptyPool(RatchetError):
    """There is nothing to draw from: no object, no line, or nothing inside the window."""


class ShortfallRefused(RatchetError):
    """A stratum or the pool holds fewer requests than were asked for, and the policy is `fail`."""


class TooManyBadLines(RatchetError):
    """More lines could not be read than the limit allows; the rest would be a biased pool."""


class StratumCount(BaseModel):
    """One length band: asked for, present and taken (case SA1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    low: int = Field(description="prompt tokens, inclusive")
    high: int | None = Field(description="prompt tokens, exclusive; None for no bound")
    wanted: float = Field(description="the quota, or the pool's share of n")
    had: int = Field(description="logical requests in the pool and window")
    taken: int
    pool_share: float = Field(description="0 to 1 of the pool's requests")
    sample_share: float = Field(description="0 to 1 of the sample's requests")


class SampleManifest(BaseModel):
    """How the sample came about. `shortfall` and `arrivals_redrawn` must be shown wherever it is used."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: str
    window: tuple[float, float] | None = Field(description="seconds, start inclusive, end exclusive")
    seed: int
    held_out: bool
    policy: Literal["shrink", "fail"]
    hash_low: float = Field(description="conversations with a keyed hash in [hash_low, hash_high) were taken")
    hash_high: float
    strata: tuple[StratumCount, ...]
    requests_pool: int
    requests_taken: int
    conversations_pool: int
    conversations_taken: int
    pool_is_estimate: bool = Field(description="the pool was too large to count exactly (0.3 % error)")
    shortfall: bool = Field(description="fewer were taken than were wanted in some stratum or in all")
    arrivals_redrawn: bool = Field(description="a quota was filled, so the arrivals are no true thinning")
    prefix_reuse_pool: float | None = Field(description="share of prompt an endless prefix cache would hold")
    prefix_reuse_sample: float | None
    interarrival_cv_pool: float | None = Field(description="coefficient of variation of the arrival gaps")
    interarrival_cv_sample: float | None
    dropped: dict[str, int] = Field(description="reason to number of lines or requests left out")
    missing_ids: int = Field(description="lines without an id; they are kept under a made one")
    retries_collapsed: int = Field(description="attempts beyond the first of the requests considered")
    reused_ids: int = Field(description="requests whose id other content has too; kept, id marked")
    objects: int
    lines: int
    bad_lines: int
    first_bad_lines: tuple[str, ...]
    damaged_objects: dict[str, str] = Field(
        description="object name to what is wrong with it; its whole lines before the damage are in the pool"
    )
    notes: tuple[str, ...]
    sample_hash: str

    def text(self) -> str:
        """The manifest for a person, one fact a line."""
        lines = [
            f"{self.requests_taken} of {self.requests_pool} requests, {self.conversations_taken} of "
            f"{self.conversations_pool} conversations, seed {self.seed}"
            f"{', held out' if self.held_out else ''}"
        ]
        lines += [
            f"{s.name}: wanted {s.wanted:.0f}, had {s.had}, took {s.taken} "
            f"({s.pool_share:.1%} of the pool, {s.sample_share:.1%} of the sample)"
            for s in self.strata
        ]
        lines.append(
            f"prefix reuse: pool {_number(self.prefix_reuse_pool)}, sample {_number(self.prefix_reuse_sample)}"
        )
        lines.append(
            f"inter-arrival CV: pool {_number(self.interarrival_cv_pool)}, "
            f"sample {_number(self.interarrival_cv_sample)}"
        )
        lines += [f"left out: {count} ({reason})" for reason, count in sorted(self.dropped.items())]
        lines += [f"damaged: {name}: {why}" for name, why in sorted(self.damaged_objects.items())]
        if self.bad_lines:
            lines.append(f"{self.bad_lines} of {self.lines} lines could not be read")
        return "\n".join([*lines, *self.notes])


def save_manifest(manifest: SampleManifest, path: Path) -> None:
    """Write the manifest as JSON, whole or not at all."""
    body = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    write_atomically(path, (body + "\n").encode())


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
