"""Strangers' text (prompts, logs, labels) as delimited, bounded data. Pure: the nonce is an argument."""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 4000
# The name of a secret at the end of a longer name: OPENAI_API_KEY, db_password; prompt_tokens and tokenizer are none.
_NAME = (
    r"(?i)(?<![A-Za-z0-9])([\"']?[A-Za-z0-9_-]{0,40}?(?:api[_-]?key|access[_-]?key|secret(?:[_-]?key)?|password|passwd|"
    r"passphrase|authorization|credentials?"
)
_VALUE = r"[\"']?\s*[:=]\s*)[\"']?"
_SECRETS = (
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|glpat|xox[abp]|hf|github_pat)[-_][A-Za-z0-9_-]{8,}"), "[secret]"),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), "[secret]"),
    (re.compile(r"(://)[^\s/:@]{0,200}:[^\s/@]{1,200}@"), r"\1[secret]@"),
    (re.compile(r"\bAKIA[0-9A-Z]{12,}\b"), "[secret]"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), "[secret]"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 [secret]"),
    (re.compile(_NAME + ")" + _VALUE + r"[^\s\"',;]{4,}"), r"\1[secret]"),
    (  # a token that is a number counts tokens
        re.compile(
            r"(?i)(?<![A-Za-z0-9])([\"']?(?:[A-Za-z0-9_-]{0,40}?[_-])?token" + _VALUE + r"(?![\d.]+\b)[^\s\"',;]{4,}"
        ),
        r"\1[secret]",
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        "[secret]",
    ),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,190}\b"), "[address]"),
    (re.compile(r"(?<![\w.])\+?\d[\d ()/-]{8,40}\d(?![\w.])"), "[number]"),
)


def stripped(text: str) -> str:
    """The text without what looks like a secret, an e-mail address or a telephone number.

    Characters that show nothing (zero width, direction marks) go first: they would hide one.
    """
    text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def delimited(name: str, text: str, nonce: str, *, max_chars: int = MAX_CHARS) -> str:
    """The text between markers that its writer could not know.

    Args:
        name: what it is, in one word; letters, digits, `_` and `-` only.
        nonce: unguessable and new for every prompt; removed from the text itself.

    Raises:
        ValueError: a name with other characters, or a nonce that can be guessed.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"{name!r} cannot name a block of data")
    if len(nonce) < 16:
        raise ValueError("a nonce of fewer than 16 characters can be guessed")
    clean = "".join(c if c.isprintable() or c in "\n\t" else " " for c in stripped(text))
    while nonce in clean:  # what is left may join to another one
        clean = clean.replace(nonce, "")
    if len(clean) > max_chars:
        clean = clean[:max_chars] + f"\n[cut: {len(clean) - max_chars} more characters]"
    return f"<data-{nonce} name={name}>\n{clean}\n</data-{nonce}>"
