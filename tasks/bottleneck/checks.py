"""What is refused about a candidate, whoever wrote it (spec L2, L3). Pure."""

from __future__ import annotations

import re

from tasks.bottleneck.evidence import MEANINGS
from tasks.bottleneck.records import BottleneckCandidate, EvidencePack
from tasks.shared.records import Reading

_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?P<number>[-+−]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"\s?(?P<unit>%|per cent|[A-Za-zµ]+)?"
)
_FORBIDDEN = (
    (
        re.compile(
            r"\b(add|buy|more|new(er)?|other|different|another|better|bigger|faster|larger|upgrade\w*|extra"
            r"|scale out)\b"
            r"[^.;]{0,40}\b(gpus?|accelerators?|hardware|nodes?|machines?|servers?|replicas?|[abh]\d00s?|h20s?|cpus?)\b",
            re.IGNORECASE,
        ),
        "other hardware",
    ),
    (
        re.compile(
            r"\b(smaller|other|different|another|distil\w*|replace\w*|swap\w*|switch\w*|newer|cheaper)\b"
            r"[^.;]{0,30}\b(models?|checkpoints?|weights)\b",
            re.IGNORECASE,
        ),
        "another model",
    ),
    (
        re.compile(
            r"\b(skip\w*|bypass\w*|disable\w*|without|ignore\w*)\b[^.;]{0,30}\b(validation|sandbox|gates?|approval)",
            re.IGNORECASE,
        ),
        "passing by the validation",
    ),
)
_SCALES = {"ms": ("s", 1000.0), "s": ("ms", 0.001)}


def check_candidate(candidate: BottleneckCandidate, evidence: EvidencePack) -> str | None:
    """Why a candidate is refused; None when it may stand.

    Refused are: citing what is not there or unknown (no data), numbers in the claim that match no cited
    reading, a missing confirmation or falsification, and advice that the loop may not give.
    """
    for field in ("claim", "confirm", "falsify"):
        if not getattr(candidate, field).strip():
            return f"{candidate.name}: {field} is missing"
    if candidate.falsify.strip().lower() == candidate.claim.strip().lower():
        return f"{candidate.name}: the falsification repeats the claim"
    readings = []
    for cited in candidate.cites:
        reading = evidence.reading(cited)
        if reading.value is None:
            return f"{candidate.name}: cites {cited}, which is {reading.text()}"
        readings.append(reading)
    words = f"{candidate.claim} {candidate.confirm}"
    for pattern, what in _FORBIDDEN:
        if found := pattern.search(words):
            return f"{candidate.name}: advises {what} ({found.group(0)!r})"
    return _wrong_number(candidate, readings)


def _wrong_number(candidate: BottleneckCandidate, readings: list[Reading]) -> str | None:
    text = candidate.claim
    # Ids are names, not quotations, even where they hold digits.
    for name in sorted({*candidate.cites, *MEANINGS}, key=len, reverse=True):
        text = text.replace(name, " ")
    for found in _NUMBER.finditer(text):
        quoted, unit = found.group("number"), (found.group("unit") or "").lower()
        if not any(_matches(quoted, unit, reading) for reading in readings):
            known = ", ".join(reading.text() for reading in readings)
            quotation = found.group(0).strip()
            return f"{candidate.name}: the claim quotes {quotation}, the cited evidence reads {known}"
    return None


def _matches(quoted: str, unit: str, reading: Reading) -> bool:
    """Whether a quoted number is the reading, rounded as the quotation is."""
    text = quoted.replace(",", "").replace("−", "-")
    number = float(text)
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    value = reading.value or 0.0
    candidates = [value]
    if unit in ("%", "per"):
        candidates = [value if reading.unit == "%" else value * 100]
    elif unit in ("k", "thousand"):
        candidates = [value / 1000]
    elif unit in _SCALES and reading.unit == _SCALES[unit][0]:
        candidates = [value * _SCALES[unit][1]]
    half = 0.5 * 10.0**-decimals
    return any(abs(number - c) <= max(min(half, 0.1 * abs(c)), 5.1e-4 * abs(c), 1e-12) for c in candidates)
