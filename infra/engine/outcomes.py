"""How an engine ended, told apart so that a failed start is never taken for a measurement."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["start", "load"]
OutcomeKind = Literal[
    "invalid_config",
    "not_started",
    "oom_start",
    "oom_load",
    "host_kill",
    "engine_dead",
    "start_timeout",
    "port_taken",
    "ended",
    "other",
]

LINES_KEPT = 30
LINE_WIDTH = 500
USAGE_EXIT = 2
KILLED = (-9, 137)
ENDED = (0, -15, 143)
"""Asked to end, or ended by itself: under load that is somebody's doing, and no fault of the configuration."""

# Memory failures come under many names; the last four are vLLM's own and do not say OOM.
MEMORY = re.compile(
    r"OutOfMemory(?:Error)?\b|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|out of memory|can't allocate memory|Cannot allocate memory|\bMemoryError\b|std::bad_alloc"
    r"|not enough memory|No available memory for the cache blocks"
    r"|is less than (?:requested memory for kv|desired (?:CPU|GPU) memory utilization)"
    r"|larger than the (?:available|maximum number of tokens that can be stored in) KV cache",
    re.IGNORECASE,
)
ADDRESS = re.compile(r"Address already in use|EADDRINUSE", re.IGNORECASE)
USAGE = re.compile(r"^usage: |error: (?:unrecognized arguments|argument |ambiguous option|the following)", re.MULTILINE)
CONFIGURATION = re.compile(  # the exception that ends a traceback, not its name inside other text
    r"(?:^|[\]):] )(?:\w+\.)*(?:ValidationError|ValueError|NotImplementedError|AssertionError|KeyError|TypeError)\b",
    re.MULTILINE,
)
NETWORK = re.compile(
    r"\b(?:ConnectionError|MaxRetryError|ConnectTimeout|NameResolutionError|LocalEntryNotFoundError)\b"
)
KERNEL = re.compile(r"Out of memory: Killed process|oom-kill|oom_reaper", re.IGNORECASE)
ADVICE = re.compile(r"^\s*(?:\([^)]{1,80}\)\s*)?(?:DEBUG|INFO|WARNING)\b")
"""A line of the log that reports or advises. What it names has not happened."""
DEAD = re.compile(r"EngineDeadError|EngineCore encountered|Engine core (?:proc|initialization)", re.IGNORECASE)
TELLING = re.compile(r"(?:\w*(?:Error|Exception)\b: .+|error: .+|Killed|out of memory.*)")
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Outcome(BaseModel):
    """One ending."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: OutcomeKind
    phase: Phase
    exit_code: int | None = Field(description="negative: the signal; None: it still ran or nobody saw it end")
    detail: str = Field(description="the telling line of the log, or what was seen instead")
    last_lines: tuple[str, ...] = ()

    @property
    def blames_configuration(self) -> bool:
        """Whether the configuration is to be remembered as not servable."""
        return self.kind in ("invalid_config", "oom_start", "oom_load", "engine_dead")

    def text(self) -> str:
        """For a person, in one line."""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return f"{self.kind} during {self.phase}{code}: {self.detail}"


def classify_exit(  # noqa: PLR0911 - one return a kind
    exit_code: int | None, log_tail: str, phase: Phase
) -> Outcome:
    """The outcome of an engine that ended (or, with exit code None, that was given up).

    Args:
        exit_code: of the process; negative for a signal; None when it still runs.
        log_tail: the end of its log.
        phase: "start" before it answered once, "load" after.
    """
    log_tail = ANSI.sub("", log_tail)
    lines = tuple(line[:LINE_WIDTH] for line in log_tail.splitlines() if line.strip())[-LINES_KEPT:]

    def outcome(kind: OutcomeKind, pattern: re.Pattern[str] | None = None) -> Outcome:
        return Outcome(kind=kind, phase=phase, exit_code=exit_code, detail=_telling(lines, pattern), last_lines=lines)

    happened = "\n".join(line for line in log_tail.splitlines() if not ADVICE.match(line))
    if exit_code in KILLED and KERNEL.search(happened):
        return outcome("host_kill", KERNEL)
    if MEMORY.search(happened):
        return outcome("oom_start" if phase == "start" else "oom_load", MEMORY)
    if exit_code in KILLED:
        return outcome("host_kill")
    if phase == "load":
        if exit_code in ENDED and not DEAD.search(happened):
            return outcome("ended")
        dead = DEAD.search(happened) is not None or exit_code is not None
        return outcome("engine_dead" if dead else "other")
    if exit_code is None:
        return outcome("start_timeout")
    if ADDRESS.search(happened):
        return outcome("port_taken", ADDRESS)
    if NETWORK.search(happened):
        return outcome("not_started", NETWORK)
    if (exit_code == USAGE_EXIT and USAGE.search(happened)) or CONFIGURATION.search(happened):
        return outcome("invalid_config", CONFIGURATION if exit_code != USAGE_EXIT else None)
    return outcome("not_started")


def _telling(lines: tuple[str, ...], pattern: re.Pattern[str] | None) -> str:
    # A chain of exceptions begins with the cause; the last ones only say that something below failed.
    if pattern is not None:
        for line in lines:
            if pattern.search(line):
                found = TELLING.search(line)
                return (found.group() if found else line.strip())[:LINE_WIDTH]
    for line in reversed(lines):
        if found := TELLING.search(line):
            return found.group()[:LINE_WIDTH]
    return lines[-1].strip() if lines else "it wrote nothing"
