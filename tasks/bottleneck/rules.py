"""Stage 2's decision: what holds the engine up, by the evidence. Pure.

Every candidate is rendered from readings that are known and judge; unknown evidence never yields one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tasks.bottleneck import evidence as ids
from tasks.bottleneck.checks import check_candidate
from tasks.bottleneck.records import BottleneckCandidate, BottleneckReport, EvidencePack

MAX_CANDIDATES = 5
FULL_BATCH = 0.9
"""Share of max_num_seqs from which the batch counts as full."""
HIGH_REUSE = 0.2
LOW_HIT_RATE = 0.05
FULL_CACHE = 0.9
PREFILL_HEAVY = 0.5
LONG_HEAVY = 0.12
"""Share of the prompt tokens in long prompts; 7 % of the requests are long, so this is about twice their share."""
CPU_HEAVY = 0.3
FEWEST_RISK = 0.05
"""No change is free of risk; keeps a small gain at no risk from outranking everything."""


def _known(pack: EvidencePack, item_id: str) -> float | None:
    reading = pack.reading(item_id)
    return reading.value if reading.judges else None


def _gain_without(share: float | None) -> float | None:
    """Throughput gained when a share of the time is no longer spent, %: 1 / (1 - share) - 1."""
    if share is None or not 0 <= share < 1:
        return None
    return round((1 / (1 - share) - 1) * 100, 1)


def _text(pack: EvidencePack, item_id: str) -> str:
    """A reading as a claim quotes it: shares in per cent, all in digits enough to be found again."""
    reading = pack.reading(item_id)
    if reading.value is None:
        return reading.text()
    if reading.unit == "ratio":
        return f"{reading.value * 100:.3g} %"
    return f"{reading.value:,.4g}" if abs(reading.value) < 1e4 else f"{reading.value:,.0f}"


def _queueing(pack: EvidencePack) -> BottleneckCandidate | None:
    running, limit = _known(pack, ids.RUNNING_MAX), _known(pack, ids.MAX_NUM_SEQS)
    waiting = _known(pack, ids.WAITING_AVG)
    if running is None or not limit or waiting is None or running < FULL_BATCH * limit or waiting <= 0:
        return None
    # The queue would run too. Half of it counts: a larger batch also makes each step slower.
    gain = round(min(100.0, 50 * waiting / limit), 1)
    return BottleneckCandidate(
        name="queueing",
        cites=(ids.RUNNING_MAX, ids.WAITING_AVG, ids.MAX_NUM_SEQS),
        claim=f"the batch is full: {_text(pack, ids.RUNNING_MAX)} requests run at a limit of "
        f"{_text(pack, ids.MAX_NUM_SEQS)} while {_text(pack, ids.WAITING_AVG)} wait on average",
        expected_gain_pct=gain,
        risk=0.3,
        confirm="raise max_num_seqs at saturating load: running requests rise and queue time falls",
        falsify="with a higher limit the running requests stay where they are, or throughput does not move "
        "because every step became slower in proportion",
    )


def _prefix_recompute(pack: EvidencePack) -> BottleneckCandidate | None:
    reuse = _known(pack, ids.PREFIX_REUSE)
    if reuse is None or reuse < HIGH_REUSE:
        return None
    caching, hits = _known(pack, ids.PREFIX_CACHING), _known(pack, ids.PREFIX_HIT_RATE)
    if caching == 0:
        cites, state = (
            [ids.PREFIX_REUSE, ids.PREFIX_CACHING],
            f"prefix caching is off ({_text(pack, ids.PREFIX_CACHING)})",
        )
    elif caching is None and hits is not None and hits < LOW_HIT_RATE:
        cites = [ids.PREFIX_REUSE, ids.PREFIX_HIT_RATE]
        state = f"the prefix cache answers {_text(pack, ids.PREFIX_HIT_RATE)} of them"
    else:
        return None
    share = _known(pack, ids.PREFILL_TIME_SHARE)
    if share is not None:
        cites.append(ids.PREFILL_TIME_SHARE)
    return BottleneckCandidate(
        name="prefix_recompute",
        cites=tuple(cites),
        claim=f"{_text(pack, ids.PREFIX_REUSE)} of the prompt tokens repeat an earlier prefix and {state}"
        + (f"; prefill takes {_text(pack, ids.PREFILL_TIME_SHARE)} of the time" if share is not None else ""),
        expected_gain_pct=_gain_without(None if share is None else share * reuse),
        risk=0.15,
        confirm="switch prefix caching on: the hit rate comes near the traffic's reuse and TTFT falls",
        falsify="with caching on the hit rate stays near zero, or TTFT and throughput do not move",
    )


def _kv_cache(pack: EvidencePack) -> BottleneckCandidate | None:
    usage, preemptions = _known(pack, ids.KV_CACHE_MAX), _known(pack, ids.PREEMPTIONS)
    cites, parts = [], []
    if usage is not None and usage >= FULL_CACHE:
        cites.append(ids.KV_CACHE_MAX)
        parts.append(f"the KV cache was {_text(pack, ids.KV_CACHE_MAX)} full")
    if preemptions is not None and preemptions > 0:
        cites.append(ids.PREEMPTIONS)
        parts.append(f"{_text(pack, ids.PREEMPTIONS)} running requests were preempted")
    if not cites:
        return None
    return BottleneckCandidate(
        name="kv_cache",
        cites=tuple(cites),
        claim=" and ".join(parts),
        expected_gain_pct=None,
        risk=0.5,
        confirm="give the cache more room: preemptions stop and more requests run at once",
        falsify="with more room the running requests and the throughput stay where they are",
    )


def _prefill(pack: EvidencePack) -> BottleneckCandidate | None:
    share = _known(pack, ids.PREFILL_TIME_SHARE)
    if share is None or share < PREFILL_HEAVY:
        return None
    return BottleneckCandidate(
        name="prefill",
        cites=(ids.PREFILL_TIME_SHARE,),
        claim=f"prefill takes {_text(pack, ids.PREFILL_TIME_SHARE)} of the inference time",
        expected_gain_pct=None,
        risk=0.4,
        confirm="change the token budget of a step: prefill's share and TTFT follow",
        falsify="prefill's share and TTFT do not follow the token budget",
    )


def _long_context(pack: EvidencePack) -> BottleneckCandidate | None:
    long_tokens, limit = _known(pack, ids.LONG_TOKEN_SHARE), _known(pack, ids.MAX_MODEL_LEN)
    prefill = _known(pack, ids.PREFILL_TIME_SHARE)
    if long_tokens is None or limit is None or long_tokens < LONG_HEAVY:
        return None
    cites = [ids.LONG_TOKEN_SHARE, ids.MAX_MODEL_LEN]
    if prefill is not None:
        cites.append(ids.PREFILL_TIME_SHARE)
    if _known(pack, ids.LONG_SHARE) is not None:
        cites.append(ids.LONG_SHARE)
        who = f"long prompts are {_text(pack, ids.LONG_SHARE)} of the requests and "
    else:
        who = "long prompts hold "
    return BottleneckCandidate(
        name="long_context",
        cites=tuple(cites),
        claim=f"{who}{_text(pack, ids.LONG_TOKEN_SHARE)} of the prompt tokens, at a longest sequence of "
        f"{_text(pack, ids.MAX_MODEL_LEN)}",
        expected_gain_pct=_gain_without(None if prefill is None else prefill * long_tokens),
        risk=0.8,
        confirm="measure short and long prompts apart: short ones wait behind long prefills",
        falsify="short prompts are as slow without long ones beside them; or a gain comes only from prompts "
        "that are no longer served",
    )


def _cpu_side(pack: EvidencePack) -> BottleneckCandidate | None:
    share = _known(pack, ids.CPU_SIDE_SHARE)
    if share is None or share < CPU_HEAVY:
        return None
    return BottleneckCandidate(
        name="cpu_side",
        cites=(ids.CPU_SIDE_SHARE,),
        claim=f"{_text(pack, ids.CPU_SIDE_SHARE)} of the profile's samples tokenise, schedule, detokenise or serve",
        # A profile gives direction only (spec L3).
        expected_gain_pct=None,
        risk=0.4,
        confirm="overlap scheduling with the model's step: the accelerator's idle gaps shrink",
        falsify="the gaps between steps stay as they are, or throughput does not move",
    )


def _decode_batch(pack: EvidencePack) -> BottleneckCandidate | None:
    share, running = _known(pack, ids.PREFILL_TIME_SHARE), _known(pack, ids.RUNNING_AVG)
    if share is None or running is None or share >= PREFILL_HEAVY or running < 1:
        return None
    return BottleneckCandidate(
        name="decode_batch",
        cites=(ids.PREFILL_TIME_SHARE, ids.RUNNING_AVG),
        claim=f"decoding dominates: prefill takes {_text(pack, ids.PREFILL_TIME_SHARE)} of the inference "
        f"time, with {_text(pack, ids.RUNNING_AVG)} requests in the batch on average",
        expected_gain_pct=None,
        risk=0.4,
        confirm="make a decode step cheaper at the same batch: TPOT falls and throughput follows",
        falsify="TPOT does not move, or it falls while throughput stays",
    )


_RULES: tuple[Callable[[EvidencePack], BottleneckCandidate | None], ...] = (
    _queueing,
    _prefix_recompute,
    _kv_cache,
    _prefill,
    _long_context,
    _cpu_side,
    _decode_batch,
)


def score(candidate: BottleneckCandidate) -> tuple[int, float]:
    """Sort key, best first: expected gain over risk; uncertain ones come last, the less risky first."""
    if candidate.expected_gain_pct is None:
        return 1, candidate.risk
    return 0, -candidate.expected_gain_pct / max(candidate.risk, FEWEST_RISK)


def rule_candidates(pack: EvidencePack) -> tuple[BottleneckCandidate, ...]:
    """What the rules see, best first; empty when the evidence shows nothing."""
    return tuple(sorted((c for rule in _RULES if (c := rule(pack)) is not None), key=score))


def bottleneck_report(pack: EvidencePack, analyst: Sequence[BottleneckCandidate] = ()) -> BottleneckReport:
    """Stage 2's result: five candidates at most, best first, each checked; one per bottleneck.

    Where rules and analyst name the same bottleneck the rules' candidate stays: its numbers are rendered from
    the readings, not quoted.
    """
    kept: dict[str, BottleneckCandidate] = {}
    refused = []
    for candidate in (*rule_candidates(pack), *analyst):
        refusal = check_candidate(candidate, pack)
        if refusal is not None:
            refused.append(f"{candidate.by}: {refusal}")
        elif candidate.name not in kept:
            kept[candidate.name] = candidate
        elif candidate.by == "analyst":
            refused.append(f"analyst: {candidate.name} is named already")
    ranked = sorted(kept.values(), key=score)
    refused += [f"{c.by}: {c.name} is beyond the {MAX_CANDIDATES} best" for c in ranked[MAX_CANDIDATES:]]
    return BottleneckReport(
        campaign=pack.campaign,
        evidence=pack,
        candidates=tuple(ranked[:MAX_CANDIDATES]),
        refused=tuple(refused),
    )
