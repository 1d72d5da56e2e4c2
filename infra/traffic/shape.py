"""The shape of production traffic: who asks, when, how long, and what repeats. Pure and seeded.

A window is a stretch at recorded load followed by one peak that arrives faster than the fleet can serve, and
a lull in which it drains. `phase` fixes all structure (arrivals, lengths, conversations); `seed`
changes the words. Two windows of one phase and different seeds are the same load with fresh prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.errors import BadInput
from infra.replay.words import WORDS
from infra.sampling.sample import Sample, SampleEntry, Stratum, make_sample, strata_from_bounds

# One word of the vocabulary and one full stop are one token each for SmolLM2's tokenizer (measured: each of
# the words; whole planned prompts were right to 3 tokens); its chat template adds these.
_TOKENS_PER_MESSAGE = 5
_TOKENS_TO_ANSWER = 4
_WORDS_PER_SENTENCE = 10


class TrafficShape(BaseModel):
    """Parameters of the load. Defaults fit a 135M model on one CPU core that serves about one
    request a second; docs/traffic.md has the sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenants: int = Field(default=4, ge=1, description="each has one system prompt that all its requests share")
    tenant_skew: float = Field(default=1.0, ge=0, description="Zipf exponent of the tenants' shares")
    system_tokens: tuple[int, int] = Field(default=(120, 160), description="shortest and longest system prompt")
    mix: tuple[float, float, float] = Field(default=(0.62, 0.31, 0.07), description="short, medium, long")
    short_below_tokens: int = Field(default=256, ge=32)
    medium_below_tokens: int = Field(default=448, ge=64)
    longest_prompt_tokens: int = Field(default=700, ge=128)
    shortest_turn_tokens: int = Field(default=12, ge=1, description="fewest tokens that a user writes")
    output_median_tokens: float = Field(default=11.0, gt=0)
    output_log_sd: float = Field(default=0.86, ge=0, description="of ln(output tokens); Azure 2023 conv: 0.86")
    output_tokens: tuple[int, int] = Field(default=(8, 16), description="fewest and most")
    continue_probability: float = Field(default=0.5, ge=0, le=1, description="a request continues a conversation")
    think_s: float = Field(default=2.0, ge=0, description="shortest time between two turns of a conversation")
    interarrival_cv: float = Field(default=1.3, gt=0, description="of the gamma gaps; 1 is Poisson")
    recorded_rate_per_s: float = Field(default=0.5, gt=0, description="mean rate of the recorded-load part")
    wave_depth: float = Field(default=0.4, ge=0, lt=1, description="rate swings by this share: peaks and lulls")
    wave_period_s: float = Field(default=20.0, gt=0)
    peak_rate_per_s: float = Field(default=2.5, gt=0, description="beyond what the fleet can serve")
    peak_share: float = Field(default=0.2, ge=0, lt=1, description="of the window, for the peak")
    drain_share: float = Field(default=0.3, ge=0, lt=1, description="of the window, without arrivals, at its end")
    tenant_seed: int = Field(default=1, description="decides the system prompts, which no window changes")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if abs(sum(self.mix) - 1) > 1e-6 or min(self.mix) <= 0:
            raise ValueError("mix must be three positive shares that add up to 1")
        if not self.short_below_tokens < self.medium_below_tokens < self.longest_prompt_tokens:
            raise ValueError("short_below, medium_below and longest_prompt must rise")
        if not 0 < self.system_tokens[0] <= self.system_tokens[1]:
            raise ValueError("system_tokens must be positive and rise")
        if self.shortest_prompt_tokens >= self.short_below_tokens:
            raise ValueError("the system prompts leave no room for a short prompt")
        if self.peak_share + self.drain_share >= 1:
            raise ValueError("peak and drain leave no time for the recorded load")
        if not 0 < self.output_tokens[0] <= self.output_tokens[1]:
            raise ValueError("output_tokens must be positive and rise")
        return self

    @property
    def shortest_prompt_tokens(self) -> int:
        """The longest system prompt and the shortest question."""
        return self.system_tokens[1] + 2 * _TOKENS_PER_MESSAGE + _TOKENS_TO_ANSWER + self.shortest_turn_tokens

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """The length bands that belong to this scale."""
        return strata_from_bounds(self.short_below_tokens, self.medium_below_tokens)

    def prompt_length_law(self) -> NormalDist:
        """The normal law of ln(prompt tokens) that has exactly the mix at the two bounds.

        62/31/7 at 512 and 4,096 tokens: median 297, log-sd 1.78; at the defaults 221 and 0.48.
        """
        short, medium, _ = self.mix
        unit = NormalDist()
        z_short, z_medium = unit.inv_cdf(short), unit.inv_cdf(short + medium)
        sigma = math.log(self.medium_below_tokens / self.short_below_tokens) / (z_medium - z_short)
        return NormalDist(math.log(self.short_below_tokens) - z_short * sigma, sigma)


class PlannedRequest(BaseModel):
    """One request that production will send."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: str
    conversation_id: str
    tenant: int
    turn: int = Field(description="0 for the first of its conversation")
    offset_s: float = Field(description="seconds from the start of the window")
    part: Literal["recorded", "peak"]
    stratum: str
    prompt_tokens: int = Field(description="estimate; the server's usage counts")
    output_tokens: int
    messages: tuple[dict[str, Any], ...]


@dataclass
class _Conversation:
    number: int
    tenant: int
    turn_tokens: list[int]  # of user, assistant, user …
    length: int  # prompt tokens of the latest request, without the answer's frame
    free_s: float

    def history(self, answer_tokens: int) -> int:
        return self.length + answer_tokens + _TOKENS_PER_MESSAGE


def plan_window(shape: TrafficShape, duration_s: float, seed: int, phase: int) -> list[PlannedRequest]:
    """One window of `duration_s` seconds, in order of arrival.

    Same shape, duration and phase: same arrivals, lengths, conversations. Same seed too: same words. Answers
    of earlier turns in a history are planned text, not what the server said, so that the plan is fixed.
    BadInput when the window is too short to hold a request.
    """
    rng, peak_rng = _rng("structure", phase), _rng("peak", phase)  # what is recorded does not depend on the peak
    peak_start_s = duration_s * (1 - shape.peak_share - shape.drain_share)
    peak_end_s = duration_s * (1 - shape.drain_share)
    recorded = arrivals(shape, shape.recorded_rate_per_s, 0.0, peak_start_s, rng)
    peak = arrivals(shape, shape.peak_rate_per_s, peak_start_s, peak_end_s, peak_rng) if shape.peak_share else []
    if not recorded and not peak:
        raise BadInput(f"a window of {duration_s:g} s holds no request", remedy="Make it longer or the rate higher")
    # each part has the mix for itself, so that a short window is not all short prompts by chance
    lengths = [*prompt_lengths(shape, len(recorded), rng), *prompt_lengths(shape, len(peak), peak_rng)]
    systems = [_text(_rng("system", shape.tenant_seed, t), tokens) for t, tokens in enumerate(_system_tokens(shape))]
    weights = [1 / (t + 1) ** shape.tenant_skew for t in range(shape.tenants)]
    open_talks: list[_Conversation] = []
    plan: list[PlannedRequest] = []
    strata = shape.strata
    for number, (offset_s, target) in enumerate(zip([*recorded, *peak], lengths, strict=True)):
        answer = output_length(shape, rng)
        talk = (
            _continued(open_talks, target - shape.shortest_turn_tokens, offset_s)
            if rng.random() < shape.continue_probability
            else None
        )
        if talk is None:
            tenant = rng.choices(range(shape.tenants), weights)[0]
            base = _system_tokens(shape)[tenant] + _TOKENS_PER_MESSAGE
            talk = _Conversation(number, tenant, [], base, offset_s)
            open_talks.append(talk)
        asked = max(shape.shortest_turn_tokens, target - talk.length - _TOKENS_PER_MESSAGE - _TOKENS_TO_ANSWER)
        talk.turn_tokens.append(asked)
        talk.length += asked + _TOKENS_PER_MESSAGE
        total = talk.length + _TOKENS_TO_ANSWER
        plan.append(
            PlannedRequest(
                request_id=f"p{phase}-s{seed}-{number}",
                conversation_id=f"c-p{phase}-s{seed}-{talk.number}",
                tenant=talk.tenant,
                turn=len(talk.turn_tokens) // 2,
                offset_s=offset_s,
                part="recorded" if number < len(recorded) else "peak",
                stratum=next(s.name for s in strata if s.high is None or total < s.high),
                prompt_tokens=total,
                output_tokens=answer,
                messages=_messages(talk, systems[talk.tenant], seed, phase),
            )
        )
        talk.turn_tokens.append(answer)
        talk.length = talk.history(answer)
        talk.free_s = offset_s + shape.think_s
    return plan


def planned_sample(plan: Sequence[PlannedRequest], strata: tuple[Stratum, ...]) -> Sample:
    """The plan as a sample, with estimated prompt lengths: for a model without a traffic history."""
    return make_sample(
        [
            SampleEntry(
                request_id=p.request_id,
                conversation_id=p.conversation_id,
                arrival_s=p.offset_s,
                prompt_tokens=p.prompt_tokens,
                output_tokens=p.output_tokens,
                messages=p.messages,
            )
            for p in plan
        ],
        strata,
    )


def arrivals(shape: TrafficShape, rate_per_s: float, start_s: float, end_s: float, rng: random.Random) -> list[float]:
    """Arrival times in [start_s, end_s): gamma gaps of the shape's CV, stretched and squeezed by its wave.

    A gamma law of shape k has CV 1/sqrt(k).
    """
    k = 1 / shape.interarrival_cv**2
    found: list[float] = []
    t = start_s + rng.random() / rate_per_s
    while t < end_s:
        found.append(t)
        wave = 1 + shape.wave_depth * math.sin(2 * math.pi * t / shape.wave_period_s)
        t += rng.gammavariate(k, 1 / (k * rate_per_s * wave))
    return found


def prompt_lengths(shape: TrafficShape, count: int, rng: random.Random) -> list[int]:
    """`count` prompt lengths in tokens: strata by the mix to the nearest request, log-normal cut to each."""
    law = shape.prompt_length_law()
    lows = (shape.shortest_prompt_tokens, shape.short_below_tokens, shape.medium_below_tokens)
    highs = (shape.short_below_tokens - 1, shape.medium_below_tokens - 1, shape.longest_prompt_tokens)
    lengths: list[int] = []
    for low, high, members in zip(lows, highs, _by_largest_remainder(count, shape.mix), strict=True):
        quantiles = law.cdf(math.log(low)), law.cdf(math.log(high))
        drawn = (round(math.exp(law.inv_cdf(rng.uniform(*quantiles)))) for _ in range(members))
        lengths += [min(max(tokens, low), high) for tokens in drawn]
    rng.shuffle(lengths)
    return lengths


def output_length(shape: TrafficShape, rng: random.Random) -> int:
    """Output tokens of one answer: log-normal, cut to the shape's bounds."""
    low, high = shape.output_tokens
    return min(max(round(shape.output_median_tokens * math.exp(rng.gauss(0, shape.output_log_sd))), low), high)


def _by_largest_remainder(count: int, mix: Sequence[float]) -> list[int]:
    members = [int(count * share) for share in mix]
    order = sorted(range(len(mix)), key=lambda i: members[i] - count * mix[i])
    for i in order[: count - sum(members)]:
        members[i] += 1
    return members


def _continued(open_talks: list[_Conversation], room: int, offset_s: float) -> _Conversation | None:
    """The longest conversation that is waiting for its user and leaves it room to speak."""
    room -= _TOKENS_PER_MESSAGE + _TOKENS_TO_ANSWER
    fits = [talk for talk in open_talks if talk.turn_tokens and talk.free_s <= offset_s and talk.length <= room]
    return max(fits, key=lambda talk: (talk.length, talk.number), default=None)


def _system_tokens(shape: TrafficShape) -> list[int]:
    low, high = shape.system_tokens
    rng = _rng("system lengths", shape.tenant_seed)
    return [rng.randint(low, high) for _ in range(shape.tenants)]


def _messages(talk: _Conversation, system: str, seed: int, phase: int) -> tuple[dict[str, Any], ...]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for turn, tokens in enumerate(talk.turn_tokens):
        text = _text(_rng("words", seed, phase, talk.number, turn), tokens)
        messages.append({"role": "assistant" if turn % 2 else "user", "content": text})
    return tuple(messages)


def _text(rng: random.Random, tokens: int) -> str:
    sentences = []
    while tokens > 0:
        count = max(1, min(_WORDS_PER_SENTENCE, tokens - 1))
        sentences.append(" ".join(rng.choices(WORDS, k=count)) + ("." if tokens > 1 else ""))
        tokens -= count + 1
    return " ".join(sentences)


def _rng(*key: object) -> random.Random:
    return random.Random(repr(key))  # noqa: S311 - reproducible traffic, no secret
