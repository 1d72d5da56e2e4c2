"""Other text of equal length for what one conversation alone says; what conversations share stays as recorded.

A loop that goes over a sample more than once would find its own requests in the prefix cache, and measure a cache
that production does not have (case LG5). The words of a private part are sent in another order: most tokenizers split
at blanks, so the number of tokens stays. A private part of very few words has few orders, and may come back; it is
shorter than a block of the cache.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from infra.sampling.sample import SampleEntry


class Variations:
    """The variations of one sample's requests; variation 0 is what was recorded."""

    def __init__(self, entries: Sequence[SampleEntry]) -> None:
        self._shared_words = _shared_words(entries)
        talks: defaultdict[int, set[str]] = defaultdict(set)
        for entry in entries:
            for block in entry.block_ids or ():
                talks[block].add(_talk(entry))
        self._private_blocks = {block for block, of in talks.items() if len(of) == 1}

    def of(self, entry: SampleEntry, variant: int) -> SampleEntry:
        """The request as it is sent in pass `variant`."""
        if variant == 0:
            return entry
        if entry.block_ids:
            ids = [_other_block(b, variant) if b in self._private_blocks else b for b in entry.block_ids]
            return entry.model_copy(update={"block_ids": tuple(ids)})
        kept, messages = self._shared_words[entry.request_id], []
        for message in entry.messages or ():
            text = message.get("content")
            if isinstance(text, str):
                messages.append({**message, "content": _reordered(text, kept, variant)})
                kept = max(0, kept - len(text.split(" ")))
            else:
                messages.append(dict(message))
        return entry.model_copy(update={"messages": tuple(messages)})


def _talk(entry: SampleEntry) -> str:
    return entry.conversation_id or entry.request_id


def _words(messages: Sequence[Any]) -> list[str]:
    return [word for m in messages if isinstance(m.get("content"), str) for word in m["content"].split(" ")]


def _shared_words(entries: Sequence[SampleEntry]) -> dict[str, int]:
    """request_id → how many of its first words another conversation begins with too."""
    ordered = sorted(((_words(e.messages or ()), _talk(e), e.request_id) for e in entries), key=lambda one: one[0])
    shared = {request: 0 for _, _, request in ordered}
    for rows in (ordered, ordered[::-1]):
        # In sorted order the nearest row of another conversation shares the most.
        for at, (words, talk, request) in enumerate(rows):
            other = next((row for row in rows[at + 1 :] if row[1] != talk), None)
            if other is not None:
                common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, other[0], strict=False)))
                shared[request] = max(shared[request], common)
    return shared


def _reordered(text: str, kept: int, variant: int) -> str:
    words = text.split(" ")
    private = words[kept:]
    random.Random(f"{variant} {' '.join(private)}").shuffle(private)  # noqa: S311 - text, no secret
    return " ".join([*words[:kept], *private])


def _other_block(block: int, variant: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{variant} {block}".encode()).digest()[:6], "big")
