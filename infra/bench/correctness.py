"""Asks two engines the same questions and hands back what they answered, and how each text ended (spec V6)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import requests
from pydantic import BaseModel, ConfigDict, Field

from infra.bench.measure import Served
from infra.replay.words import WORDS

MOST_TOKENS = 96
"""Cap of a plain answer. Texts end by themselves; the cap keeps a small model that rambles from taking a minute a text.
An answer that meets it was compared up to there, which is no full text, and is reported so."""

SHORT_ANSWERS = (
    "Name the capital of France.",
    "Answer with one word: what is the opposite of hot?",
    "Answer with one number: how many days has a week?",
    "How many legs does a cat have?",
    "Answer in one short sentence: what does a baker make?",
    "Write one sentence about the sea.",
)
"""Questions whose answers end by themselves well below the cap, so that whole texts are compared: 8 to 42 tokens each,
113 in all, of the demo's model."""


class Question(BaseModel):
    """One request with natural stopping below a cap."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int = Field(default=32, description="cap; a text that meets it did not end by itself")
    needle: str = Field(default="", description="text that a right answer holds; empty for none")
    odd: bool = Field(default=False, description="empty, over-long or strange input: the status counts, not the text")
    over_long: bool = Field(default=False, description="longer than the context: a right server refuses it")


class Answer(BaseModel):
    """What came back: a text and how it ended, or the HTTP status of a refusal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    status: int = Field(description="HTTP status; 0 when there was no answer at all")
    text: str
    finish_reason: str = Field(
        default="", description="stop: the text ended by itself; length: it met the cap; empty: the engine did not say"
    )


def plain_questions() -> tuple[Question, ...]:
    """Questions with short answers, whose texts are compared from their first to their last token."""
    return tuple(
        Question(id=f"plain-{i}", max_tokens=MOST_TOKENS, messages=({"role": "user", "content": text},))
        for i, text in enumerate(SHORT_ANSWERS)
    )


def needle_question(tokens: int, seed: int) -> Question:
    """A number hidden in the middle of about `tokens` tokens of prose, asked for at the end."""
    rng = random.Random(seed)  # noqa: S311 - filler text, no secret
    code = str(rng.randrange(1000, 9999))
    words = [rng.choice(WORDS) for _ in range(max(20, int(tokens / 1.3)))]
    middle = len(words) // 2
    text = " ".join([*words[:middle], f". The secret number is {code} .", *words[middle:]])
    return Question(
        id=f"needle-{tokens}",
        needle=code,
        max_tokens=16,
        messages=({"role": "user", "content": f"{text}\n\nWhat is the secret number? Answer with the number only."},),
    )


def odd_questions(context_tokens: int) -> tuple[Question, ...]:
    """Empty, over-long and strange inputs."""
    return (
        Question(id="odd-empty", odd=True, max_tokens=4, messages=({"role": "user", "content": ""},)),
        Question(
            id="odd-over-long",
            odd=True,
            over_long=True,
            max_tokens=4,
            messages=({"role": "user", "content": "word " * (context_tokens + 200)},),
        ),
        Question(
            id="odd-characters",
            odd=True,
            max_tokens=4,
            messages=({"role": "user", "content": "\u202e\u0000🧪" + "﷽" * 5},),
        ),
    )


def ask(served: Served, questions: Sequence[Question], concurrency: int, timeout_s: float = 180) -> tuple[Answer, ...]:
    """All answers in the order of the questions. `concurrency` varies the composition of batches."""

    def one(question: Question) -> Answer:
        body = {
            "model": served.model,
            "messages": [dict(m) for m in question.messages],
            "max_tokens": question.max_tokens,
            "temperature": 0,
        }
        try:
            answer = requests.post(f"{served.root_url}/v1/chat/completions", json=body, timeout=timeout_s)
        except requests.RequestException as error:
            return Answer(id=question.id, status=0, text=f"no answer: {type(error).__name__}")
        if answer.status_code != 200:
            return Answer(id=question.id, status=answer.status_code, text="")
        choice = answer.json()["choices"][0]
        return Answer(
            id=question.id,
            status=200,
            text=choice["message"]["content"] or "",
            finish_reason=choice.get("finish_reason") or "",
        )

    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        return tuple(pool.map(one, questions))
