"""The bodies that are sent: measured requests, surrogates for block ids, and warm-up requests."""

from __future__ import annotations

import hashlib
import statistics
from functools import lru_cache
from typing import Any

from infra.replay.records import ReplayOptions
from infra.replay.words import WORDS
from infra.sampling.sample import Sample, SampleEntry

_TOKEN_ID_LOW, _TOKEN_ID_SPAN = 1000, 20_000  # ordinary tokens in every vocabulary that vLLM serves


def request_path(entry: SampleEntry, options: ReplayOptions) -> str:
    """Path below the base URL."""
    return "/completions" if entry.block_ids and options.block_prompts == "token_ids" else "/chat/completions"


def request_body(entry: SampleEntry, model: str, options: ReplayOptions) -> dict[str, Any]:
    """JSON body of one measured request.

    Speed runs force the recorded length (max_tokens, min_tokens and ignore_eos, the last two being vLLM's
    extensions): a configuration must not look faster because it answers less (case OB2).
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if options.endless else {})},
        "temperature": 0,
    }
    if options.force_output_lengths:
        body |= {"max_tokens": entry.output_tokens, "min_tokens": entry.output_tokens, "ignore_eos": True}
    else:
        body["max_tokens"] = options.natural_max_tokens
    if options.cache_salt is not None:
        body["cache_salt"] = options.cache_salt
    if entry.block_ids and options.block_prompts == "token_ids":
        body["prompt"] = block_token_ids(entry)
    elif entry.block_ids:
        body["messages"] = [{"role": "user", "content": block_text(entry)}]
    else:
        body["messages"] = list(entry.messages or ())
    return body


def block_text(entry: SampleEntry) -> str:
    """Stable surrogate text: one word a token, equal text for equal block ids, cut to the prompt's length."""
    left = entry.prompt_tokens
    words: list[str] = []
    for block in entry.block_ids or ():
        words += _block_words(block, entry.block_tokens)[: max(0, left)]
        left -= entry.block_tokens
    return " ".join(words) or WORDS[0]


def block_token_ids(entry: SampleEntry) -> list[int]:
    """Stable surrogate token ids: exactly the prompt's length where the blocks cover it."""
    left = entry.prompt_tokens
    ids: list[int] = []
    for block in entry.block_ids or ():
        ids += _block_ids(block, entry.block_tokens)[: max(0, left)]
        left -= entry.block_tokens
    return ids or [_TOKEN_ID_LOW]


def warmup_entries(sample: Sample, count: int) -> list[SampleEntry]:
    """`count` requests that go round the strata of the sample, with prompts that no measured request shares.

    Each has its stratum's median lengths. They start differently from each other and from every sample, so
    they leave nothing in a prefix cache that the measured requests could hit; they are the same in every
    replay of a sample, so two configurations are warmed alike.
    """
    by_stratum: dict[str, list[SampleEntry]] = {}
    for entry in sample.entries:
        by_stratum.setdefault(entry.stratum, []).append(entry)
    lengths = [
        (
            statistics.median_low(e.prompt_tokens for e in part),
            statistics.median_low(e.output_tokens for e in part),
        )
        for _, part in sorted(by_stratum.items())
    ]
    made = []
    for number in range(count):
        prompt_tokens, output_tokens = lengths[number % len(lengths)]
        words = _words(f"warmup {number}", max(1, prompt_tokens))
        text = f"Warm-up number {number}: {' '.join(words)}"
        made.append(
            SampleEntry(
                request_id=f"warmup-{number}",
                arrival_s=0.0,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                messages=({"role": "user", "content": text},),
            )
        )
    return made


@lru_cache(maxsize=4096)
def _block_words(block: int, tokens: int) -> tuple[str, ...]:
    return _words(f"block {block}", tokens)


@lru_cache(maxsize=4096)
def _block_ids(block: int, tokens: int) -> tuple[int, ...]:
    return tuple(_TOKEN_ID_LOW + number % _TOKEN_ID_SPAN for number in _numbers(f"block {block}", tokens))


def _words(key: str, count: int) -> tuple[str, ...]:
    return tuple(WORDS[number % len(WORDS)] for number in _numbers(key, count))


def _numbers(key: str, count: int) -> list[int]:
    raw = hashlib.shake_128(key.encode()).digest(4 * count)
    return [int.from_bytes(raw[4 * i : 4 * i + 4], "big") for i in range(count)]
