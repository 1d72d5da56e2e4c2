"""The sample: requests to replay, with their arrivals, lengths and either their messages or block ids."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from infra.errors import BadInput
from infra.sampling.files import write_atomically
from infra.sampling.objects import read_lines

Message = dict[str, JsonValue]
MISSING_IDS = frozenset({"", "none", "null", "nan", "undefined"})


class Stratum(BaseModel):
    """A band of prompt lengths: `low` tokens inclusive to `high` exclusive (None: no upper bound)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    low: int = Field(ge=0, description="tokens, inclusive")
    high: int | None = Field(default=None, description="tokens, exclusive; None for no bound")


def strata_from_bounds(short_below: int = 512, medium_below: int = 4096) -> tuple[Stratum, ...]:
    """The three bands short, medium and long. Defaults are spec V1's: 512 and 4,096 tokens."""
    if not 0 < short_below < medium_below:
        raise BadInput(f"strata bounds must rise: short below {short_below}, medium below {medium_below}")
    return (
        Stratum(name="short", low=0, high=short_below),
        Stratum(name="medium", low=short_below, high=medium_below),
        Stratum(name="long", low=medium_below),
    )


DEFAULT_STRATA = strata_from_bounds()


def stratum_of(prompt_tokens: int, strata: Iterable[Stratum] = DEFAULT_STRATA) -> str:
    """Name of the band that holds `prompt_tokens`; BadInput when no band does."""
    for stratum in strata:
        if stratum.low <= prompt_tokens and (stratum.high is None or prompt_tokens < stratum.high):
            return stratum.name
    raise BadInput(f"no stratum holds a prompt of {prompt_tokens} tokens", remedy="Give strata without gaps")


class SampleEntry(BaseModel):
    """One request of a sample. Exactly one of `messages` and `block_ids` is set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    request_id: str = Field(min_length=1, description="text, always; a made one where the log had none")
    conversation_id: str | None = None
    arrival_s: float = Field(description="seconds from the start of the sampled window")
    prompt_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=1, description="recorded; speed runs force exactly this many")
    messages: tuple[Message, ...] | None = None
    block_ids: tuple[int, ...] | None = Field(default=None, description="equal ids for equal prefixes")
    block_tokens: int = Field(default=512, ge=1, description="tokens that one block id stands for")
    stratum: str = ""

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if bool(self.messages) == bool(self.block_ids):
            raise ValueError("needs either messages or block_ids, and not both")
        return self


class Sample(BaseModel):
    """Requests in the order of their arrival. Ids are unique, so two replays can be paired by id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entries: tuple[SampleEntry, ...]
    strata: tuple[Stratum, ...] = DEFAULT_STRATA
    ignored_columns: tuple[str, ...] = Field(default=(), description="columns of the file that were not used")

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        repeated = [key for key, times in Counter(e.request_id for e in self.entries).items() if times > 1]
        if repeated:
            raise ValueError(f"{len(repeated)} request ids are repeated, the first is {repeated[0]!r}")
        return self

    @property
    def duration_s(self) -> float:
        """Seconds between the first and the last arrival; 0 for fewer than two requests."""
        if not self.entries:
            return 0.0
        return self.entries[-1].arrival_s - self.entries[0].arrival_s

    def stratum_counts(self) -> dict[str, int]:
        """Requests per stratum, zero included."""
        counted = Counter(entry.stratum for entry in self.entries)
        return {stratum.name: counted.get(stratum.name, 0) for stratum in self.strata}

    def stratum_by_request(self) -> dict[str, str]:
        """request_id to stratum name."""
        return {entry.request_id: entry.stratum for entry in self.entries}

    def conversations(self) -> frozenset[str]:
        """The units of the sample: conversation ids, and request ids where there is no conversation."""
        return frozenset(e.conversation_id or e.request_id for e in self.entries)

    def content_hash(self) -> str:
        """sha256 over the entries, independent of the file format that held them."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(_canonical(entry.model_dump(mode="json")) + b"\n")
        return digest.hexdigest()


def make_sample(
    entries: Iterable[SampleEntry],
    strata: tuple[Stratum, ...] = DEFAULT_STRATA,
    ignored_columns: tuple[str, ...] = (),
) -> Sample:
    """A sample in arrival order with every stratum named. BadInput when ids repeat."""
    placed = [
        e if e.stratum else e.model_copy(update={"stratum": stratum_of(e.prompt_tokens, strata)}) for e in entries
    ]
    placed.sort(key=lambda e: (e.arrival_s, e.request_id))
    try:
        return Sample(entries=tuple(placed), strata=strata, ignored_columns=ignored_columns)
    except ValidationError as error:
        raise BadInput(f"not a sample: {_first_fault(error)}", remedy="Draw it again with `ratchet sample`") from error


def save_sample(sample: Sample, path: Path) -> str:
    """Write `sample` as Parquet (name ends in .parquet) or JSONL; returns its content hash.

    The file appears whole or not at all.
    """
    rows = [entry.model_dump(mode="json") for entry in sample.entries]
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        _to_frame(rows).write_parquet(buffer)
        write_atomically(path, buffer.getvalue())
    else:
        write_atomically(path, b"".join(_canonical(_without_empty(row)) + b"\n" for row in rows))
    return sample.content_hash()


def load_sample(path: Path, strata: tuple[Stratum, ...] = DEFAULT_STRATA) -> Sample:
    """Read a sample from Parquet or JSONL (plain, gzip or zstd; told apart by content, not by name).

    Needs request_id, arrival_s, prompt_tokens, output_tokens and messages or block_ids; other known columns
    are optional, unknown ones are listed in `ignored_columns`. Raises BadInput naming the row and the fault.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the sample {path}: {error}") from error
    return parse_sample(data, str(path), strata)


def parse_sample(data: bytes, name: str, strata: tuple[Stratum, ...] = DEFAULT_STRATA) -> Sample:
    """`load_sample` over bytes; `name` is used in messages."""
    rows = _parquet_rows(data, name) if data[:4] == b"PAR1" else _json_rows(data, name)
    known = set(SampleEntry.model_fields) | {"hash_ids"}
    ignored: set[str] = set()
    entries = []
    for number, row in enumerate(rows, start=1):
        ignored |= set(row) - known
        entries.append(_entry(row, f"{name}, row {number}"))
    if not entries:
        raise BadInput(f"the sample {name} holds no request", remedy="Draw it again, from a window with traffic")
    return make_sample(entries, strata, tuple(sorted(ignored)))


def block_id(value: object) -> int:
    """A block id as a number: whole numbers and their text as they are, other text by its hash (63 bits)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value.lstrip("-").isdecimal():
            return int(value)
        return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "big") >> 1
    raise BadInput(f"a block id is a whole number or text, not {value!r}")


def _entry(row: Mapping[str, Any], where: str) -> SampleEntry:
    try:
        return SampleEntry.model_validate(_values(row))
    except ValidationError as error:
        raise BadInput(f"{where}: {_first_fault(error)}") from error
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: row[key] for key in SampleEntry.model_fields if row.get(key) is not None}
    if isinstance(values.get("messages"), str):
        try:
            values["messages"] = json.loads(values["messages"])
        except (ValueError, RecursionError) as error:
            raise BadInput(f"messages is text that is not JSON: {error}") from error
    column = "block_ids" if row.get("block_ids") else "hash_ids"
    if blocks := row.get(column):
        if not isinstance(blocks, list | tuple):
            raise BadInput(f"{column} is a list of whole numbers or texts, not {str(blocks)[:60]!r}")
        values["block_ids"] = tuple(block_id(item) for item in blocks)
    if isinstance(values.get("request_id"), int):
        values["request_id"] = str(values["request_id"])
    if str(values.get("request_id", "")).strip().lower() in MISSING_IDS:
        values["request_id"] = f"made-{hashlib.blake2b(_canonical(dict(row)), digest_size=12).hexdigest()}"
    return values


def _json_rows(data: bytes, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    damage: list[str] = []
    for number, line in enumerate(read_lines(data, damage.append), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{name}, row {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadInput(f"{name}, row {number} is not a JSON object")
        rows.append(row)
    if damage:
        raise BadInput(f"the sample {name} is damaged: {damage[0]}", remedy="Fetch or draw it again")
    return rows


def _parquet_rows(data: bytes, name: str) -> list[dict[str, Any]]:
    try:
        return pl.read_parquet(io.BytesIO(data)).to_dicts()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(f"the sample {name} is not readable Parquet: {error}") from error


def _to_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    plain = all(
        set(m) == {"role", "content"} and isinstance(m["content"], str) for row in rows for m in row["messages"] or ()
    )
    messages_type: Any = pl.List(pl.Struct({"role": pl.String, "content": pl.String})) if plain else pl.String
    if not plain:  # tool calls and content parts have no common columns: kept as JSON text
        rows = [{**row, "messages": json.dumps(row["messages"]) if row["messages"] else None} for row in rows]
    return pl.DataFrame(
        rows,
        schema={
            "request_id": pl.String,
            "conversation_id": pl.String,
            "arrival_s": pl.Float64,
            "prompt_tokens": pl.Int64,
            "output_tokens": pl.Int64,
            "messages": messages_type,
            "block_ids": pl.List(pl.Int64),
            "block_tokens": pl.Int64,
            "stratum": pl.String,
        },
    )


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str).encode(
        errors="surrogatepass"
    )


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place + ': ' if place else ''}{fault['msg']}"
