"""The gateway's log: one record a request, shipped as gzip JSONL objects by the hour, each written once."""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from infra.errors import RatchetError
from infra.replay.records import Status
from infra.sampling.files import write_atomically

_MOST_PENDING = 200_000


class GatewayRecord(BaseModel):
    """One request as the gateway saw it; `infra.sampling` reads it back."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    request_id: str
    conversation_id: str | None
    t_epoch_s: float = Field(description="arrival, seconds since the epoch")
    model: str
    messages: tuple[dict[str, Any], ...]
    prompt_tokens: int | None = Field(description="the server's count; None where it gave none")
    output_tokens: int | None
    status: Status
    http_status: int | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    error: str | None = None

    def line(self) -> bytes:
        """The record as one line of JSON."""
        body = self.model_dump(mode="json", exclude_none=True)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass") + b"\n"


def traffic_prefix(target_key: str) -> str:
    """Where a target's log lives: `traffic/<target>`."""
    return f"traffic/{target_key}"


def hour_folder(t_epoch_s: float) -> str:
    """`YYYY/MM/DD/HH` in UTC."""
    return datetime.fromtimestamp(t_epoch_s, tz=UTC).strftime("%Y/%m/%d/%H")


class HourlyLogWriter:
    """Collects records and writes `<prefix>/YYYY/MM/DD/HH/part-<id>.jsonl.gz`, by the hour of arrival.

    `put_once(key, bytes)` writes an object that does not exist and says whether it did. Records stay pending
    while writing fails: `add` goes on (traffic must not stop for its log), `flush` and `close` raise. Safe to
    use from several threads.
    """

    def __init__(
        self,
        put_once: Callable[[str, bytes], bool],
        prefix: str,
        *,
        flush_records: int = 500,
        flush_s: float = 5.0,
    ) -> None:
        self._put_once = put_once
        self._prefix = prefix.rstrip("/")
        self._flush_records = flush_records
        self._flush_s = flush_s
        self._pending: dict[str, list[bytes]] = {}
        self._count = 0
        self._last_flush_s = time.monotonic()
        self._lock = threading.Lock()
        self.written_records = 0
        self.written_keys: list[str] = []
        self.last_error = ""

    def add(self, record: GatewayRecord) -> None:
        """Take a record; writes when enough of them, or enough time, have come together.

        RatchetError only when so many are pending that memory would be the next fault.
        """
        with self._lock:
            self._pending.setdefault(hour_folder(record.t_epoch_s), []).append(record.line())
            self._count += 1
            due = self._count >= self._flush_records or time.monotonic() - self._last_flush_s >= self._flush_s
            if not due:
                return
            try:
                self._write()
            except Exception as error:  # any store's fault: kept pending and told by flush
                self.last_error = str(error)
                self._last_flush_s = time.monotonic()
                if self._count > _MOST_PENDING:
                    raise RatchetError(
                        f"{self._count} log records cannot be written: {error}", remedy="Bring the store back"
                    ) from error

    def flush(self) -> None:
        """Write everything that is pending; raises what the store raised."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """The same as `flush`; nothing is held open between writes."""
        self.flush()

    def _write(self) -> None:
        for hour in sorted(self._pending):
            body = gzip.compress(b"".join(self._pending[hour]), compresslevel=5)
            key = f"{self._prefix}/{hour}/part-{uuid.uuid4().hex}.jsonl.gz"
            while not self._put_once(key, body):  # a name that exists is never overwritten
                key = f"{self._prefix}/{hour}/part-{uuid.uuid4().hex}.jsonl.gz"
            written = self._pending.pop(hour)
            self._count -= len(written)
            self.written_records += len(written)
            self.written_keys.append(key)
        self._last_flush_s = time.monotonic()


def put_once_into(folder: Path) -> Callable[[str, bytes], bool]:
    """A `put_once` that writes files below `folder`: the spool of a generator without access to the store."""

    def put(key: str, data: bytes) -> bool:
        path = folder / key
        if path.exists():
            return False
        write_atomically(path, data)
        return True

    return put


def ship_spool(folder: Path, put_once: Callable[[str, bytes], bool]) -> list[str]:
    """Move finished files from a spool into the store; returns their keys. Can be repeated at any time."""
    shipped = []
    for file in sorted(folder.rglob("part-*.jsonl.gz")):
        key = file.relative_to(folder).as_posix()
        put_once(key, file.read_bytes())  # False: shipped before by a run that did not come to delete it
        file.unlink()
        shipped.append(key)
    return shipped
