"""Read one streamed completion: what arrived when, and did it end well. Pure; time is an argument.

A 200 is no success here. A stream is ok only when it has a token, a finish reason that is not an error, and
`[DONE]`; an error event makes it a stream_error whatever came before (case LG2). Tokens that the server counts and
shows no text of (a refusal, what a parser swallows) are served work (case LG7).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from infra.replay.records import Status

_FAILED_FINISHES = frozenset({"error", "abort"})


class CompletionStream:
    """State of one `text/event-stream` answer of /chat/completions or /completions."""

    def __init__(self, on_tokens: Callable[[float, int], None] | None = None) -> None:
        """`on_tokens` is told of output tokens as they come: (time, how many). A chunk is one token until the
        server's usage says how many there are."""
        self._on_tokens = on_tokens
        self._told = 0
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._line = b""
        self._data: list[bytes] = []
        self._kind = b""
        self._pieces: list[str] = []
        self._token_times: list[float] = []  # chunks that carry text
        self._all_times: list[float] = []  # those, and empty deltas that may stand for an unprintable token

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes as they came from the socket at `now_s`; lines and characters may be cut anywhere."""
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            stripped = line.removesuffix(b"\r")
            if not stripped:
                self._event(now_s)
            elif stripped.startswith(b"data:"):
                self._data.append(stripped[5:].removeprefix(b" "))
            elif stripped.startswith(b"event:"):
                self._kind = stripped[6:].strip()

    def close(self, now_s: float) -> None:
        """The body has ended; an event without its blank line still counts."""
        if self._line:
            self.feed(b"\n", now_s)
        self._event(now_s)

    @property
    def text(self) -> str:
        """All text that was streamed, reasoning included."""
        return "".join(self._pieces)

    @property
    def text_sha256(self) -> str:
        """sha256 of the text in UTF-8."""
        return hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    @property
    def chunk_times_s(self) -> list[float]:
        """When tokens arrived, one time a chunk.

        The engine streams a token without visible text (an end-of-sequence token past which it was told to go
        on) as an empty delta. Such chunks count when the server's token count leaves room for all of them.
        """
        if self.completion_tokens is not None and self.completion_tokens >= len(self._all_times):
            return self._all_times
        return self._token_times

    def status(self) -> tuple[Status, str | None]:
        """How the stream ended, and why where it did not end well. Call it after `close`."""
        if self.error is not None:
            return "stream_error", self.error
        if self.finish_reason in _FAILED_FINISHES:
            return "stream_error", f"finish_reason {self.finish_reason}"
        if self.finish_reason is None or not self.done:
            missing = [
                name for name, there in (("finish_reason", self.finish_reason), ("[DONE]", self.done)) if not there
            ]
            return "cut", f"the stream ended without {' and '.join(missing)}"
        if not self.chunk_times_s and not self.completion_tokens:
            return "no_tokens", "the stream held no token"
        return "ok", None

    @property
    def counted_tokens(self) -> int | None:
        """Output tokens by the server's usage; None where it gave none, or counted none of the text that it sent."""
        return None if self.completion_tokens == 0 and self._token_times else self.completion_tokens

    def estimated_output_tokens(self, forced_tokens: int | None) -> int:
        """Output tokens where the server gave no usage: an estimate, to be marked as one.

        A forced length that was reached is the best guess; else four characters a token, and at least one a
        chunk. Chunks alone are not tokens (case LG3).
        """
        if forced_tokens is not None and self.finish_reason == "length":
            return forced_tokens
        return max(len(self._token_times), round(len(self.text) / 4))

    def _event(self, now_s: float) -> None:
        kind, self._kind = self._kind, b""
        if not self._data:
            return
        payload = b"\n".join(self._data)
        self._data = []
        if payload.strip() == b"[DONE]":
            self.done = True
            return
        try:
            body = json.loads(payload)
        except (ValueError, RecursionError):
            self.error = self.error or f"an event that is not JSON: {payload[:80]!r}"
            return
        if not isinstance(body, dict):
            self.error = self.error or f"an event that is no object: {payload[:80]!r}"
            return
        if kind == b"error" or _is_error(body):
            self.error = self.error or _error_text(body)
            return
        self._usage(body.get("usage"))
        seen = len(self._all_times)
        choices = body.get("choices")
        try:
            for choice in () if choices is None else choices:
                self._choice(choice, now_s)
        except (AttributeError, TypeError, ValueError, RecursionError):
            self.error = self.error or f"an event of another form: {payload[:80]!r}"
        self._tell(now_s, len(self._all_times) - seen, counted=isinstance(body.get("usage"), dict))

    def _tell(self, now_s: float, chunks: int, *, counted: bool) -> None:
        new = (self.completion_tokens or 0) - self._told if counted else chunks
        if new > 0 and self._on_tokens is not None:
            self._on_tokens(now_s, new)
        self._told += max(new, 0)

    def _choice(self, choice: dict[str, Any], now_s: float) -> None:
        if _is_error(choice):
            self.error = self.error or _error_text(choice)
        finish = choice.get("finish_reason")
        if finish is not None and not isinstance(finish, str):
            raise TypeError("finish_reason is no text")
        self.finish_reason = finish or self.finish_reason
        delta = choice.get("delta")
        if delta is None:
            text, silent = choice.get("text") or "", choice.get("text") == ""
            if not isinstance(text, str):
                raise TypeError("text is no text")
        else:
            text = "".join(delta.get(key) or "" for key in ("reasoning", "reasoning_content", "content", "refusal"))
            if delta.get("tool_calls"):
                text += json.dumps(delta["tool_calls"], sort_keys=True)
            silent = "role" not in delta and delta.get("content") == ""  # the role chunk is no token
        if text:
            self._pieces.append(text)
            self._token_times.append(now_s)
        if text or silent:
            self._all_times.append(now_s)

    def _usage(self, usage: object) -> None:
        """The last usage wins: servers may send running counts."""
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _whole(usage.get("prompt_tokens"), self.prompt_tokens)
        self.completion_tokens = _whole(usage.get("completion_tokens"), self.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _whole(details.get("cached_tokens"), self.cached_tokens)


def _whole(value: object, otherwise: int | None) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _is_error(body: dict[str, Any]) -> bool:
    return body.get("error") not in (None, "", False) or body.get("object") == "error" or body.get("type") == "error"


def _error_text(body: dict[str, Any]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        return f"error event: {error.get('code', '')} {error.get('message') or error}".strip()[:300]
    return f"error event: {error or body.get('message') or body}"[:300]
