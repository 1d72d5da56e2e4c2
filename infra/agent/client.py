"""Asks any endpoint of the Messages API, and looks at why an answer ended before looking at the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import MessageParam

Status = Literal["answered", "truncated", "refused", "context_exceeded", "empty", "out_of_budget", "failed"]
MAX_ROOM = 8192
"""Largest answer asked for in one piece; the SDK refuses much larger ones without streaming."""
CHARS_PER_TOKEN = 3
"""Deliberately low, so that the budget is over-estimated before a call and never after it."""


class Turn(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["user", "assistant"]
    content: str


class Reply(BaseModel):
    """What came back. `text` may be used only when `status` is answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    text: str = ""
    stop_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    detail: str = ""


class TokenBudget:
    """Tokens that a session may spend, input and output together."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.spent = 0

    @property
    def left(self) -> int:
        """Tokens not yet spent; never negative."""
        return max(0, self.total - self.spent)


class MessagesClient:
    """One model behind one endpoint.

    Args:
        base_url: of the endpoint, without /v1/messages.
        api_key: sent as a bearer token; an endpoint without keys takes any. Nothing is read from the
            environment.
        max_tokens_total: budget over all calls of this client.
        timeout_s: limit of each request.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str,
        *,
        max_tokens_total: int = 200_000,
        timeout_s: float = 60.0,
        retries: int = 2,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self.budget = TokenBudget(max_tokens_total)
        self._key = api_key or "none"
        self._timeout_s = timeout_s
        self._retries = retries
        self._sdk: Anthropic | None = None

    def ask(self, system: str, turns: Sequence[Turn], *, max_tokens: int = 2048) -> Reply:
        """One answer; a truncated one is asked for once more with twice the room. Never raises."""
        reply = self._once(system, turns, max_tokens)
        if reply.status == "truncated" and max_tokens < MAX_ROOM:
            return self._once(system, turns, min(2 * max_tokens, MAX_ROOM))
        return reply

    def _once(self, system: str, turns: Sequence[Turn], max_tokens: int) -> Reply:
        import anthropic

        asked = (len(system) + sum(len(turn.content) for turn in turns)) // CHARS_PER_TOKEN
        if asked + max_tokens > self.budget.left:
            return Reply(
                status="out_of_budget",
                detail=f"about {asked} + {max_tokens} tokens would be needed, {self.budget.left} are left",
            )
        if self._sdk is None:
            self._sdk = anthropic.Anthropic(
                base_url=self.base_url, api_key=self._key, timeout=self._timeout_s, max_retries=self._retries
            )
        try:
            message = self._sdk.messages.create(
                model=self.model,
                max_tokens=max_tokens,
                system=system,
                messages=[_param(turn) for turn in turns],
            )
        except anthropic.APIStatusError as fault:
            return _from_status(fault.status_code, str(fault))
        except (anthropic.AnthropicError, ValueError, TypeError) as fault:
            return Reply(status="failed", detail=_short(f"{type(fault).__name__}: {fault}"))
        reply = _from_message(message)
        # An endpoint that reports no usage is charged the estimate: a budget that counts zero is none.
        counted = reply.input_tokens + reply.output_tokens
        self.budget.spent += counted or asked + len(reply.text) // CHARS_PER_TOKEN
        return reply


def _param(turn: Turn) -> MessageParam:
    if turn.role == "user":
        return {"role": "user", "content": turn.content}
    return {"role": "assistant", "content": turn.content}


def _from_status(code: int, text: str) -> Reply:
    # Endpoints word it differently; all of them answer 400 or 413.
    words = text.lower()
    too_long = code in (400, 413) and any(part in words for part in ("too long", "context", "maximum"))
    return Reply(status="context_exceeded" if too_long else "failed", detail=_short(f"HTTP {code}: {text}"))


def _from_message(message: Any) -> Reply:
    stop = str(getattr(message, "stop_reason", None) or "")
    usage = getattr(message, "usage", None)
    tokens = {
        "input_tokens": int(getattr(usage, "input_tokens", 0) or 0),
        "output_tokens": int(getattr(usage, "output_tokens", 0) or 0),
    }
    if not hasattr(message, "content"):
        return Reply(status="failed", detail=_short(f"no message of the Messages API: {message!r}"))
    parts = [getattr(part, "text", "") or "" for part in message.content or [] if getattr(part, "type", "") == "text"]
    text = "".join(parts)
    by_reason: dict[str, Status] = {
        "max_tokens": "truncated",
        "refusal": "refused",
        "model_context_window_exceeded": "context_exceeded",
        "end_turn": "answered",
        "stop_sequence": "answered",
    }
    status = by_reason.get(stop, "failed")
    if status == "answered" and not text.strip():
        status = "empty"
    detail = "" if status == "answered" else f"the answer ended with stop_reason {stop or 'none'}"
    return Reply(status=status, text=text, stop_reason=stop, detail=detail, **tokens)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:300] + " …"
