"""Draw a sample: thin the pool by a keyed hash of the conversation, fill quotas, say what was done."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import ValidationError

from infra.errors import BadInput
from infra.sampling.logged import LoggedRequest
from infra.sampling.manifest import EmptyPool, SampleManifest, ShortfallRefused, StratumCount, TooManyBadLines
from infra.sampling.objects import ObjectSource
from infra.sampling.partial import (
    HASH_SPACE,
    THINNED,
    Attempts,
    Cell,
    DrawPlan,
    PartialDraw,
    can_replay,
    made_id,
)
from infra.sampling.pool import PrefixUse, arrivals_that_coincide, inter_arrival_cv
from infra.sampling.sample import DEFAULT_STRATA, Sample, SampleEntry, Stratum, make_sample, stratum_of

_COARSE_ABOVE = 0.2


def draw_sample(
    objects: ObjectSource,
    *,
    seed: int,
    n: int | None = None,
    share: float | None = None,
    strata: tuple[Stratum, ...] = DEFAULT_STRATA,
    quotas: Mapping[str, int] | None = None,
    window: tuple[float, float] | None = None,
    held_out: bool = False,
    policy: Literal["shrink", "fail"] = "shrink",
    source: str = "the given objects",
    bad_lines_allowed: int = 10,
    bad_line_share_allowed: float = 0.01,
) -> tuple[Sample, SampleManifest]:
    """Draw from a pool of logged requests, (name, bytes) each object.

    The unit is the conversation; the request where there is none. `n` takes the conversations with the
    smallest keyed hashes until n requests are met; `share` takes those in [0, share). `held_out` takes the
    conversations that follow in the same order, so it shares none with the first sample of the same seed and
    size. A stratum with a quota gives exactly that many requests (bottom-k by the same hash), and then
    arrivals are redrawn.

    Raises EmptyPool, ShortfallRefused (policy `fail`), TooManyBadLines, BadInput (a plan without sense).
    """
    try:
        plan = DrawPlan(
            seed=seed,
            n=n,
            share=share,
            strata=strata,
            quotas=dict(quotas or {}),
            window=window,
            held_out=held_out,
            policy=policy,
            source=source,
            bad_lines_allowed=bad_lines_allowed,
            bad_line_share_allowed=bad_line_share_allowed,
        )
    except ValidationError as error:
        raise BadInput(f"cannot draw: {error.errors()[0]['msg']}") from error
    return finish_draw(PartialDraw(plan).read(objects))


def merge_draws(parts: Iterable[PartialDraw]) -> PartialDraw:
    """Join partial draws of one plan; order and grouping do not matter."""
    first, *rest = parts
    for part in rest:
        first.merge(part)
    return first


def finish_draw(partial: PartialDraw) -> tuple[Sample, SampleManifest]:
    """The sample and its manifest from everything that was read. Raises as `draw_sample`."""
    plan = partial.plan
    _refuse_unreadable(partial)
    partial.join_attempts()
    chosen, bounds = [], []
    for name, cell in partial.cells.items():
        taken, low, high = _choose(cell, plan, quota=name != THINNED)
        chosen += taken
        bounds.append((low, high))
    dropped: Counter[str] = Counter()
    if partial.outside_window:
        dropped["outside the window"] = partial.outside_window
    for attempts in chosen:
        if not can_replay(attempts.best):
            dropped[_why_not(attempts.best)] += 1
    replayable = [a for a in chosen if can_replay(a.best)]
    if not replayable:
        raise EmptyPool(
            f"{plan.source}{_window_text(plan)} leaves nothing to take: {partial.faults.lines} lines, "
            f"{dict(dropped) or 'none of them in the hash interval'}",
            remedy="Draw more, or take the held-out sample from another day"
            if plan.held_out
            else "raise n or share, or choose another window",
        )
    origin = plan.window[0] if plan.window else min(partial.pool.arrivals_s)
    entries, reused = _entries(replayable, origin, plan.strata)
    if plan.quotas:
        entries = _redraw_arrivals(entries, partial, origin)
    sample = make_sample(entries, plan.strata)
    manifest = _describe(partial, sample, chosen, bounds=bounds, dropped=dropped, reused=reused)
    if manifest.shortfall and plan.policy == "fail":
        short = [f"{s.name}: wanted {s.wanted:.0f}, had {s.had}, took {s.taken}" for s in manifest.strata]
        raise ShortfallRefused(
            f"{plan.source} holds too little: {'; '.join(short)}",
            remedy="Use a longer window, smaller quotas, or the policy shrink",
        )
    return sample, manifest


def _refuse_unreadable(partial: PartialDraw) -> None:
    plan, faults = partial.plan, partial.faults
    if faults.bad_lines > plan.bad_lines_allowed and faults.bad_lines > plan.bad_line_share_allowed * faults.lines:
        raise TooManyBadLines(
            f"{faults.bad_lines} of {faults.lines} lines of {plan.source} could not be read (allowed "
            f"{plan.bad_line_share_allowed:.1%}), the first: {faults.first_bad[0]}",
            remedy="Fix the log's writer, or raise the limit knowingly",
        )
    if partial.pool.arrivals_s:
        return
    what = (
        "has no objects"
        if not faults.objects
        else f"has {faults.objects} objects without a readable request"
        if not partial.outside_window
        else f"has {partial.outside_window} requests, none inside the window"
    )
    if faults.damaged:
        some = "; ".join(f"{name}: {why}" for name, why in list(faults.damaged.items())[:3])
        what += f"; {len(faults.damaged)} are damaged, {some}"
    if faults.first_bad:
        what += f"; {faults.bad_lines} lines could not be read, the first: {faults.first_bad[0]}"
    raise EmptyPool(f"{plan.source}{_window_text(plan)} {what}", remedy="Check the prefix and the window")


def _choose(cell: Cell, plan: DrawPlan, *, quota: bool) -> tuple[list[Attempts], int, int]:
    """The requests of the cell that are taken, and the hash interval that they came from."""
    ordered = sorted(cell.units)
    if cell.need is None:
        return [a for unit in ordered for a in _in_order(cell, unit)], cell.low, cell.high
    size = cell.need // (2 if plan.held_out else 1)
    low, position = 0, 0
    if plan.held_out:  # the first sample's conversations are left to it
        _, position = _fill(cell, ordered, 0, size)
        low = ordered[position] if position < len(ordered) else cell.high
    taken, end = _fill(cell, ordered, position, size)
    if quota:
        replayable = [a for a in taken if can_replay(a.best)][:size]
        taken = replayable + [a for a in taken if not can_replay(a.best)]
    return taken, low, ordered[end] if end < len(ordered) else cell.high


def _fill(cell: Cell, ordered: list[int], position: int, size: int) -> tuple[list[Attempts], int]:
    taken: list[Attempts] = []
    replayable = 0
    while position < len(ordered) and replayable < size:
        unit = _in_order(cell, ordered[position])
        taken += unit
        replayable += sum(can_replay(a.best) * _copies(a) for a in unit)
        position += 1
    return taken, position


def _in_order(cell: Cell, unit: int) -> list[Attempts]:
    return [a for _, a in sorted(cell.units[unit].items(), key=lambda item: (item[1].first_s, item[0]))]


def _copies(attempts: Attempts) -> int:
    """Lines without an id are requests of their own even when nothing tells them apart."""
    return attempts.count if attempts.best.request_id is None else 1


def _why_not(request: LoggedRequest) -> str:
    if request.prompt_tokens is None:
        return "no prompt token count"
    return "no output" if request.ok else "failed without output"


def _entries(chosen: list[Attempts], origin_s: float, strata: tuple[Stratum, ...]) -> tuple[list[SampleEntry], int]:
    """Entries with unique ids, and how many requests had an id that other content also had."""
    entries: list[SampleEntry] = []
    seen: set[str] = set()
    reused = 0
    for attempts in sorted(chosen, key=lambda a: (a.first_s, a.best.request_id or "", a.best.content_digest())):
        request = attempts.best
        identity = request.request_id or made_id(request)
        for copy in range(_copies(attempts)):
            name = identity if copy == 0 else f"{identity}-{copy + 1}"
            if name in seen:
                reused += 1
                name = f"{name}#{request.content_digest().hex()[:8]}"
                while name in seen:
                    name += "+"
            seen.add(name)
            prompt_tokens, output_tokens = request.prompt_tokens or 0, request.output_tokens or 1
            blocks = request.block_ids
            if request.messages is None and blocks is None:
                blocks = _own_blocks(name, prompt_tokens, request.block_tokens)
            entries.append(
                SampleEntry(
                    request_id=name,
                    conversation_id=request.conversation_id,
                    arrival_s=attempts.first_s - origin_s,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    messages=request.messages,
                    block_ids=None if request.messages else blocks,
                    block_tokens=request.block_tokens,
                    stratum=stratum_of(prompt_tokens, strata),
                )
            )
    return entries, reused


def _own_blocks(name: str, prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
    """Block ids that no other request shares, for a trace that says nothing about prefixes."""
    return tuple(
        int.from_bytes(hashlib.blake2b(f"{name}\0{i}".encode(), digest_size=8).digest(), "big") >> 1
        for i in range(max(1, -(-prompt_tokens // block_tokens)))
    )


def _redraw_arrivals(entries: list[SampleEntry], partial: PartialDraw, origin_s: float) -> list[SampleEntry]:
    """Give the entries arrivals drawn from the pool's, in their old order: its peaks and lulls are kept."""
    rng = random.Random(partial.plan.seed)  # noqa: S311 - a reproducible draw, no secret
    pool = sorted(partial.pool.arrivals_s)
    drawn = sorted(rng.sample(pool, len(entries)) if len(entries) <= len(pool) else rng.choices(pool, k=len(entries)))
    ordered = sorted(entries, key=lambda e: (e.arrival_s, e.request_id))
    return [e.model_copy(update={"arrival_s": t - origin_s}) for e, t in zip(ordered, drawn, strict=True)]


def _describe(
    partial: PartialDraw,
    sample: Sample,
    chosen: list[Attempts],
    *,
    bounds: list[tuple[int, int]],
    dropped: Mapping[str, int],
    reused: int,
) -> SampleManifest:
    plan, pool = partial.plan, partial.pool
    had, taken = pool.per_stratum(), sample.stratum_counts()
    had_all, taken_all = sum(had.values()), len(sample.entries)
    thinned_pool = sum(count for name, count in had.items() if name not in plan.quotas)
    strata, short = [], False
    for stratum in plan.strata:
        count = had.get(stratum.name, 0)
        if stratum.name in plan.quotas:
            wanted = float(plan.quotas[stratum.name])
            short = short or taken[stratum.name] < wanted
        elif plan.share is not None:
            wanted = plan.share * count
        else:
            wanted = (plan.thinned_n or 0) * count / thinned_pool if thinned_pool else 0.0
        strata.append(
            StratumCount(
                name=stratum.name,
                low=stratum.low,
                high=stratum.high,
                wanted=wanted,
                had=count,
                taken=taken[stratum.name],
                pool_share=count / had_all if had_all else 0.0,
                sample_share=taken[stratum.name] / taken_all,
            )
        )
    short = short or (plan.n is not None and THINNED in partial.cells and taken_all < plan.n)
    prefixes = PrefixUse()
    for entry in sample.entries:
        prefixes.add(entry.messages, entry.block_ids, entry.block_tokens)
    arrivals = [entry.arrival_s for entry in sample.entries]
    return SampleManifest(
        source=plan.source,
        window=plan.window,
        seed=plan.seed,
        held_out=plan.held_out,
        policy=plan.policy,
        hash_low=min(low for low, _ in bounds) / HASH_SPACE,
        hash_high=max(high for _, high in bounds) / HASH_SPACE,
        strata=tuple(strata),
        requests_pool=had_all,
        requests_taken=taken_all,
        conversations_pool=len(pool.units.kept) * pool.units.scale,
        conversations_taken=len(sample.conversations()),
        pool_is_estimate=pool.estimated,
        shortfall=short,
        arrivals_redrawn=bool(plan.quotas),
        prefix_reuse_pool=pool.prefixes.reuse(),
        prefix_reuse_sample=prefixes.reuse(),
        interarrival_cv_pool=inter_arrival_cv(pool.arrivals_s),
        interarrival_cv_sample=inter_arrival_cv(arrivals),
        dropped=dict(dropped),
        missing_ids=partial.missing_ids,
        retries_collapsed=sum(a.count - _copies(a) for a in chosen),
        reused_ids=reused,
        objects=partial.faults.objects,
        lines=partial.faults.lines,
        bad_lines=partial.faults.bad_lines,
        first_bad_lines=tuple(partial.faults.first_bad),
        damaged_objects=dict(sorted(partial.faults.damaged.items())),
        notes=_notes(partial, sample, short),
        sample_hash=sample.content_hash(),
    )


def _notes(partial: PartialDraw, sample: Sample, short: bool) -> tuple[str, ...]:
    notes = []
    if short:
        notes.append("shortfall: fewer requests than asked for; nothing was topped up or repeated")
    if partial.plan.quotas:
        notes.append(
            "arrivals were redrawn from the pool's, and conversations may be incomplete, because quotas were declared"
        )
    coinciding = arrivals_that_coincide(partial.pool.arrivals_s)
    if coinciding > _COARSE_ABOVE:
        notes.append(
            f"{coinciding:.0%} of the pool's arrivals share their timestamp with another: the log's "
            "clock is coarse, so its burstiness is partly made by it"
        )
    if partial.pool.prefixes.total == 0:
        notes.append("the log says nothing about content: every prompt is replayed as if it shared no prefix")
    if not any(e.conversation_id for e in sample.entries):
        notes.append(
            "no conversation key: requests were thinned one by one, so prefixes that they share were thinned too"
        )
    return tuple(notes)


def _window_text(plan: DrawPlan) -> str:
    return "" if plan.window is None else f" in the window {plan.window[0]:.0f} to {plan.window[1]:.0f} s"
