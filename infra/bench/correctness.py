"""Asks two engines the same questions and hands the full texts back (spec V6)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import requests
from pydantic import BaseModel, ConfigDict, Field

from infra.bench.measure import Served
from infra.replay.words import WORDS


class Question(BaseModel):
    """One request with natural stopping."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int = 24
    needle: str = Field(default="", description="text that a right answer holds; empty for none")
    odd: bool = Field(default=False, description="empty, over-long or strange input: the status counts, not the text")


class Answer(BaseModel):
    """What came back: the whole text, or the HTTP status of a refusal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    status: int
    text: str


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
        return Answer(id=question.id, status=200, text=answer.json()["choices"][0]["message"]["content"] or "")

    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        return tuple(pool.map(one, questions))
