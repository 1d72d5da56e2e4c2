"""An analyst that reads evidence and names suspected bottlenecks; the caller's rules check what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.agent.client import MessagesClient, Reply, Turn
from infra.agent.extract import NotOneObjectError, single_object
from infra.agent.untrusted import delimited

REASKS = 2
T = TypeVar("T", bound=BaseModel)


class CandidateAnswer(BaseModel):
    """One suspected bottleneck as the analyst words it. Keys beyond these are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    cites: tuple[str, ...] = Field(min_length=1, strict=False)
    claim: str
    expected_gain_pct: float | None
    risk: float = Field(ge=0, le=1)
    confirm: str
    falsify: str


class AnalystAnswer(BaseModel):
    """The analyst's one object; no candidates is an allowed answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    candidates: tuple[CandidateAnswer, ...] = Field(max_length=5, strict=False)


class Question(BaseModel):
    """The four parts of the prompt (spec H7), and what strangers wrote.

    `knobs` holds those that matter for the present bottleneck, not all; `data` goes in as delimited data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str
    knobs: tuple[str, ...]
    history: tuple[str, ...]
    task: str
    evidence: tuple[str, ...]
    data: Mapping[str, str] = Field(default_factory=dict)


class Findings(BaseModel):
    """What may be used of the analyst's answer, and what became of the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    candidates: tuple[CandidateAnswer, ...] = ()
    refused: tuple[str, ...] = ()
    note: str = Field(default="", description="why there is no answer, when there is none")
    tokens: int = 0


class Analyst(Protocol):
    """Whoever reads evidence and names candidates."""

    def candidates(self, question: Question, check: Callable[[CandidateAnswer], str | None], nonce: str) -> Findings:
        """Candidates that passed `check` (gives the refusal, or None); never raises for an answer."""
        ...


def prompt(question: Question, nonce: str) -> tuple[str, str]:
    """(system text, user text) with the four parts in their order."""
    template = files("infra.agent").joinpath("prompts/analyst.md").read_text(encoding="utf-8")
    head, _, body = template.partition("<!-- user -->")
    blocks = "\n\n".join(delimited(name, text, nonce) for name, text in sorted(question.data.items()))
    parts = {
        "{{nonce}}": nonce,
        "{{system}}": question.system,
        "{{knobs}}": "\n".join(f"- {knob}" for knob in question.knobs) or "- none",
        "{{history}}": "\n".join(f"- {line}" for line in question.history) or "- nothing measured yet",
        "{{task}}": question.task,
        "{{evidence}}": delimited("evidence", "\n".join(question.evidence), nonce, max_chars=20_000),
        "{{data}}": blocks or "none",
    }
    return _filled(head, parts).strip(), _filled(body, parts).strip()


def _filled(text: str, parts: Mapping[str, str]) -> str:
    # One pass over the template: a value that holds another placeholder is not filled in again.
    pieces = [text]
    for key, value in parts.items():
        next_pieces: list[str] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                next_pieces.append(piece)
                continue
            halves = piece.split(key)
            for at, half in enumerate(halves):
                if at:
                    next_pieces.append(value)
                next_pieces.append(half)
        pieces = next_pieces
    return "".join(pieces)


def ask_object(
    client: MessagesClient,
    system: str,
    user: str,
    answer: type[T],
    check: Callable[[T], str | None],
    *,
    reasks: int = REASKS,
    max_tokens: int = 2048,
) -> tuple[T | None, str]:
    """(an object of type `answer` that passed `check`, note); None where none passed in 1 + `reasks` tries.

    A broken or refused object is asked for again with the error. A model that refuses, or a prompt that is
    too long, is not asked again: the loop goes on without an answer.
    """
    turns = [Turn(role="user", content=user)]
    note = ""
    for _ in range(1 + reasks):
        reply = client.ask(system, turns, max_tokens=max_tokens)
        if reply.status != "answered":
            return None, _note(reply)
        try:
            found = answer.model_validate(single_object(reply.text))
        except NotOneObjectError as fault:
            note = fault.message
        except ValidationError as fault:
            note = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in fault.errors(include_url=False, include_input=False)
            )
        else:
            refusal = check(found)
            if refusal is None:
                return found, ""
            note = refusal
        turns += [
            Turn(role="assistant", content=reply.text),
            Turn(
                role="user",
                content=f"That cannot be used: {note}. Answer again with exactly one JSON object.",
            ),
        ]
    return None, f"no usable answer in {1 + reasks} tries; the last fault was: {note}"


def _note(reply: Reply) -> str:
    return f"{reply.status.replace('_', ' ')}: {reply.detail}" if reply.detail else reply.status


class MessagesAnalyst:
    """The analyst behind a Messages API endpoint."""

    def __init__(self, client: MessagesClient, *, reasks: int = REASKS) -> None:
        self._client = client
        self._reasks = reasks

    def candidates(self, question: Question, check: Callable[[CandidateAnswer], str | None], nonce: str) -> Findings:
        """As the protocol says. Refused candidates are dropped; when all are, the model is asked again."""
        before = self._client.budget.spent
        system, user = prompt(question, nonce)
        refused: list[str] = []

        def all_refused(found: AnalystAnswer) -> str | None:
            refusals = [refusal for c in found.candidates if (refusal := check(c)) is not None]
            refused.extend(refusals)
            return "; ".join(refusals) if refusals and len(refusals) == len(found.candidates) else None

        answer, note = ask_object(self._client, system, user, AnalystAnswer, all_refused, reasks=self._reasks)
        kept = () if answer is None else tuple(c for c in answer.candidates if check(c) is None)
        return Findings(
            candidates=kept,
            refused=tuple(dict.fromkeys(refused)),
            note=note,
            tokens=self._client.budget.spent - before,
        )
