"""What py-spy's collapsed stacks say about one engine: which work the samples fell into. Pure.

A stack is read from its leaf towards its root and belongs to the first frame that is known here. The order matters:
an engine core that was forked from its API server carries the server's start-up below its own frames, and a model's
layers lie above the engine's loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.readings import Reading

Work = Literal["tokenise", "schedule", "detokenise", "serve", "execute", "other"]
CPU_SIDE: tuple[Work, ...] = ("tokenise", "schedule", "detokenise", "serve")
MIN_SAMPLES = 100
"""Fewer samples tell a share of a third from one of a fifth by luck alone."""

_FILES: Mapping[Work, re.Pattern[str]] = {
    "detokenise": re.compile(
        r"[(/]vllm/(?:v1/engine/(?:detokenizer|output_processor|logprobs|parallel_sampling)"
        r"|tokenizers/detokenizer_utils)\.py"
    ),
    "tokenise": re.compile(
        r"[(/](?:vllm/(?:inputs|renderers|tokenizers)/|vllm/v1/engine/input_processor\.py"
        r"|vllm/entrypoints/chat_utils\.py|transformers/(?:tokenization_|utils/chat_template)|tokenizers/)"
    ),
    "schedule": re.compile(r"[(/]vllm/v1/(?:core|structured_output)/"),
    "execute": re.compile(
        r"[(/](?:vllm/v1/(?:worker|executor|sample|attention|spec_decode)/"
        r"|vllm/(?:model_executor|distributed|ir|compilation)/|vllm/(?:_custom_ops|forward_context)\.py|torch/)"
    ),
    "other": re.compile(r"[(/]vllm/v1/(?:engine/core|serial_utils)\.py"),
    "serve": re.compile(r"[(/](?:vllm/entrypoints|uvicorn|starlette|fastapi)/"),
}
# A thread in one of these waits, whatever the kernel said of it in that instant.
_WAITS = re.compile(
    r"[(/](?:threading|selectors|queue)\.py|[(/]zmq/sugar/poll\.py|^_worker \(.*concurrent/futures/thread\.py"
    r"|[(/]tqdm/_monitor\.py"
)


class CpuProfile(BaseModel):
    """Shares of one engine's busy samples. Direction only: no gain is computed from it (spec L3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu_side: Reading = Field(description="ratio: all that is not the model's own work, of the four below")
    tokenise: Reading = Field(description="ratio: chat templates, tokenisers, checks of the input")
    schedule: Reading = Field(description="ratio: the scheduler and its KV cache's book-keeping")
    detokenise: Reading = Field(description="ratio: tokens back to text")
    serve: Reading = Field(description="ratio: HTTP and its JSON")

    @classmethod
    def unknown(cls, cause: str, source: str = "") -> CpuProfile:
        """No profile, and why."""
        reading = Reading.unknown(cause, unit="ratio", source=source)
        return cls(cpu_side=reading, **dict.fromkeys(CPU_SIDE, reading))


def work_of(stack: str) -> Work | None:
    """What one collapsed stack (root first, frames parted by `;`) works on; None when its thread waits."""
    frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
    if not frames or _WAITS.search(frames[-1]):
        return None
    for frame in reversed(frames):
        for work, files in _FILES.items():
            if files.search(frame):
                # The same tokeniser's library turns text to tokens and tokens to text; who called it tells.
                decodes = work == "tokenise" and any(_FILES["detokenise"].search(f) for f in frames)
                return "detokenise" if decodes else work
    return "other"


def work_counts(collapsed: str) -> Mapping[Work, int]:
    """Samples by work, of py-spy's raw format: a line is a stack, a space, and how often it was seen.

    Lines that are not of this form count nothing.
    """
    counts: Counter[Work] = Counter()
    for line in collapsed.splitlines():
        stack, _, times = line.rpartition(" ")
        if stack and times.isdecimal() and (work := work_of(stack)) is not None:
            counts[work] += int(times)
    return counts


def cpu_profile(collapsed: str, source: str) -> CpuProfile:
    """The shares in py-spy's raw output; unknown below `MIN_SAMPLES` busy samples.

    Args:
        source: what made the stacks, for whoever reads the reading.
    """
    counts = work_counts(collapsed)
    busy = sum(counts.values())
    if busy < MIN_SAMPLES:
        return CpuProfile.unknown(f"too few samples: {busy} of a busy thread, {MIN_SAMPLES} are needed", source)

    def share(*parts: Work) -> Reading:
        return Reading.of(sum(counts[p] for p in parts) / busy, "ratio", source=source, samples=busy)

    return CpuProfile(cpu_side=share(*CPU_SIDE), **{part: share(part) for part in CPU_SIDE})
