"""One logged request, whatever wrote the log: the gateway, Azure's CSV, BurstGPT's CSV, Mooncake's JSONL, or
a sample that was saved earlier."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from infra.errors import BadInput
from infra.sampling.objects import read_lines
from infra.sampling.sample import MISSING_IDS, block_id

_FAILED_STATUSES = frozenset(
    {"error", "failed", "http_error", "stream_error", "cut", "timeout", "no_tokens", "not_sent", "abort"}
)
_FAILED_FINISHES = frozenset({"error", "abort"})
_MILLISECONDS_ABOVE = 1e11  # no log of ours is dated after the year 5138, so larger numbers are milliseconds


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One line of a traffic log. A retried request has one line per attempt."""

    request_id: str | None  # None where the log had none: "", null and the text "None" are no ids
    conversation_id: str | None
    t_s: float  # seconds since the epoch, or since the start of a trace that has no date
    prompt_tokens: int | None
    output_tokens: int | None
    messages: tuple[dict[str, Any], ...] | None
    block_ids: tuple[int, ...] | None
    block_tokens: int
    ok: bool

    def content_digest(self) -> bytes:
        """16 bytes that are equal for equal content (messages or blocks; lengths where there is neither)."""
        if self.messages is not None:
            body: object = self.messages
        elif self.block_ids is not None:
            body = self.block_ids
        else:
            body = (self.prompt_tokens, self.output_tokens)
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


class LineFaults:
    """What was wrong with the lines and objects that were read. Partial counts add up."""

    def __init__(self) -> None:
        self.objects = 0
        self.lines = 0
        self.bad_lines = 0
        self.first_bad: list[str] = []
        self.damaged: dict[str, str] = {}

    def bad(self, where: str, why: str) -> None:
        """Count one bad line; the first few are kept for the report."""
        self.bad_lines += 1
        if len(self.first_bad) < 5:
            self.first_bad.append(f"{where}: {why}")

    def add(self, other: LineFaults) -> None:
        """Add the counts of another part."""
        self.objects += other.objects
        self.lines += other.lines
        self.bad_lines += other.bad_lines
        self.first_bad = sorted(self.first_bad + other.first_bad)[:5]
        self.damaged.update(other.damaged)


def read_logged(key: str, data: bytes, faults: LineFaults) -> Iterator[LoggedRequest]:
    """The requests of one object; what cannot be read is counted in `faults`, never skipped silently."""
    faults.objects += 1
    if data[:4] == b"PAR1":
        yield from _from_parquet(key, data, faults)
        return

    def damage(why: str) -> None:
        faults.damaged[key] = why

    parse: Callable[[bytes], LoggedRequest] | None = None
    for number, line in enumerate(read_lines(data, damage), start=1):
        if parse is None:
            try:
                parse = _csv_parser(line)
            except (ValueError, csv.Error) as error:
                damage(f"its first line is no text of a log (UTF-8, plain or in gzip or zstd frames): {error}")
                return
            if parse is not None:
                continue  # the header is no request
            parse = _parse_json
        faults.lines += 1
        try:
            request = parse(line)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, csv.Error, BadInput) as error:
            faults.bad(f"{key}, line {number}", str(error) or type(error).__name__)
            continue
        yield request


def from_mapping(row: Mapping[str, Any]) -> LoggedRequest:
    """A logged request from a JSON object: the gateway's record, a sample's row, or Mooncake's.

    Raises ValueError where time or a token count is no number, or the content is of no such form.
    """
    messages = row.get("messages")
    if isinstance(messages, str):
        messages = _decoded(messages)
    if messages is not None and not (isinstance(messages, list) and all(isinstance(m, dict) for m in messages)):
        raise ValueError("messages is not a list of objects")
    blocks = row.get("block_ids") or row.get("hash_ids")
    if blocks is not None and not isinstance(blocks, list):
        raise ValueError("block ids are not a list")
    return LoggedRequest(
        request_id=_first_identity(row, "logical_id", "request_id", "id"),
        conversation_id=_first_identity(row, "conversation_id", "session_id", "x_conversation_id"),
        t_s=_time(row),
        prompt_tokens=_count(_first(row, "prompt_tokens", "input_length")),
        output_tokens=_count(_first(row, "output_tokens", "completion_tokens", "output_length")),
        messages=tuple(messages) if messages else None,
        block_ids=tuple(block_id(b) for b in blocks) if blocks else None,
        block_tokens=_count(row.get("block_tokens")) or 512,
        ok=_succeeded(row),
    )


def _from_parquet(key: str, data: bytes, faults: LineFaults) -> Iterator[LoggedRequest]:
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except (pl.exceptions.PolarsError, OSError) as error:
        faults.damaged[key] = f"not readable Parquet: {error}"
        return
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        faults.lines += 1
        try:
            yield from_mapping(row)
        except (ValueError, TypeError, RecursionError, BadInput) as error:
            faults.bad(f"{key}, row {number}", str(error))


def _parse_json(line: bytes) -> LoggedRequest:
    row = _decoded(line.decode("utf-8"))
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return from_mapping(row)


def _decoded(text: str) -> Any:
    """The JSON value. ValueError for none, and for half a character (`\\ud800`), which no file can hold."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _csv_parser(header: bytes) -> Callable[[bytes], LoggedRequest] | None:
    if header[:1] in {b"{", b"["}:
        return None
    names = _cells(header)
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(names):  # Azure LLM inference trace 2023
        columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens", "")
    elif {"Timestamp", "Request tokens", "Response tokens"} <= set(names):  # BurstGPT
        columns = ("Timestamp", "Request tokens", "Response tokens", "Session ID")
    else:
        return None

    def parse(line: bytes) -> LoggedRequest:
        cells = _cells(line)
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells under a header of {len(names)}")
        row = dict(zip(names, cells, strict=True))
        prompt, output = _count(row[columns[1]]), _count(row[columns[2]])
        return LoggedRequest(
            request_id=None,
            conversation_id=_identity(row.get(columns[3])),
            t_s=_moment(row[columns[0]]),
            prompt_tokens=prompt,
            output_tokens=output,
            messages=None,
            block_ids=None,
            block_tokens=512,
            ok=bool(output),
        )

    return parse


def _cells(line: bytes) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line.decode("utf-8")]))]


def _first(row: Mapping[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _first_identity(row: Mapping[str, Any], *names: str) -> str | None:
    return next((found for name in names if (found := _identity(row.get(name))) is not None), None)


def _identity(value: object) -> str | None:
    if value is None or isinstance(value, bool | float | list | dict):
        return None  # a float has already lost the digits that made it an id
    text = str(value)
    return None if text.strip().lower() in MISSING_IDS else text


def _count(value: object) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise ValueError(f"a token count is a number, not {value!r}")
    if isinstance(value, str):
        value = int(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"a token count is a whole number, not {value!r}")
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a token count is a whole number from 0, not {value!r}")
    return value


def _time(row: Mapping[str, Any]) -> float:
    if "input_length" in row and "timestamp" in row:  # Mooncake: milliseconds from the start of the trace
        return _finite(row["timestamp"]) / 1000.0
    value = _first(row, "t_epoch_s", "arrival_s", "timestamp", "time", "ts")
    if value is None:
        raise ValueError("no time (t_epoch_s)")
    return _moment(value)


def _moment(value: object) -> float:
    if isinstance(value, str):
        try:
            return _moment(float(value))
        except ValueError:
            pass
        # Azure writes seven fractional digits, more than a microsecond can hold
        head, dot, tail = value.partition(".")
        digits = len(tail) - len(tail.lstrip("0123456789"))
        moment = datetime.fromisoformat(head + tail[digits:])
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)  # a date without a zone is taken as UTC on every machine
        return moment.timestamp() + (float(f"0.{tail[:digits]}") if dot and digits else 0.0)
    number = _finite(value)
    return number / 1000.0 if abs(number) > _MILLISECONDS_ABOVE else number


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a time is a finite number, not {value!r}")
    return float(value)


def _succeeded(row: Mapping[str, Any]) -> bool:
    status = row.get("status", row.get("http_status"))
    if isinstance(status, int) and not isinstance(status, bool) and status >= 400:
        return False
    if isinstance(status, str) and (status.lower() in _FAILED_STATUSES or (status.isdigit() and int(status) >= 400)):
        return False
    return row.get("finish_reason") not in _FAILED_FINISHES and not row.get("error")
