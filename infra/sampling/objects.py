"""Objects of a traffic log: where they come from, and their lines whatever the compression.

Log shippers append compressed blocks, so an object may hold several frames; compression is told by magic,
because names and Content-Encoding lie. A truncated or broken frame is reported, and the whole lines before
the break are still given: they are real traffic, and leaving them out would be a second fault.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zstandard

from infra.errors import BadInput

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # preceded by one byte 0x50..0x5f
_CHUNK_BYTES = 1 << 20
_LARGEST_WINDOW_BYTES = 1 << 31  # what `zstd --long=31` writes
_DEEPEST_NESTING = 3

ObjectSource = Iterable[tuple[str, bytes]]


class _DamagedError(Exception):
    """A frame that is cut or broken; the text says where."""


def objects_from_dir(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every file under `path` (or of the one file), in name order, without hidden files."""
    if path.is_file():
        yield path.name, path.read_bytes()
        return
    if not path.is_dir():
        raise BadInput(f"there is no file or folder {path}")
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file.relative_to(path).as_posix(), file.read_bytes()


def objects_from_s3(
    list_keys: Callable[[str], Iterable[str]], get: Callable[[str], bytes], prefix: str
) -> Iterator[tuple[str, bytes]]:
    """(key, bytes) of every object under `prefix`.

    `list_keys(prefix)` gives all keys (it pages beyond 1,000 itself), `get(key)` the bytes of one.
    """
    for key in list_keys(prefix):
        yield key, get(key)


def read_lines(data: bytes, report_damage: Callable[[str], None]) -> Iterator[bytes]:
    """The non-empty lines of an object, decompressed as often as it was compressed.

    Lines end in LF or CRLF; the last one needs no end. On damage `report_damage` gets one sentence and the
    unfinished line is dropped.
    """
    rest = b""
    try:
        for chunk in _plain(_pieces(data), 0):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                stripped = line.strip()
                if stripped:
                    yield stripped
    except _DamagedError as damage:
        report_damage(str(damage))
        return
    if rest.strip():
        yield rest.strip()


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def _plain(chunks: Iterator[bytes], depth: int) -> Iterator[bytes]:
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 4:
            break
    if depth < _DEEPEST_NESTING and _frame_kind(head):
        yield from _plain(_frames(head, chunks), depth + 1)
        return
    yield head.removeprefix(b"\xef\xbb\xbf")  # a byte order mark is no part of the first line
    yield from chunks


def _frame_kind(head: bytes) -> str:
    if head[:2] == GZIP_MAGIC:
        return "gzip"
    if head[:4] == ZSTD_MAGIC:
        return "zstd"
    if len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == SKIPPABLE_MAGIC:
        return "skippable"
    return ""


def _frames(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    frame, pending = 0, head
    while pending:
        frame += 1
        while len(pending) < 8 and (more := next(chunks, b"")):
            pending += more
        kind = _frame_kind(pending)
        if not kind:
            if not pending.strip(b"\0") and not any(c.strip(b"\0") for c in chunks):
                return  # padding after the last frame
            raise _DamagedError(f"bytes that are no frame follow frame {frame - 1}")
        if kind == "skippable":
            pending = _skip(pending, chunks)
            continue
        decoder = (
            zlib.decompressobj(wbits=31)
            if kind == "gzip"
            else zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES).decompressobj()
        )
        try:
            while True:
                out = decoder.decompress(pending)
                if out:
                    yield out
                if decoder.eof:
                    break
                pending = next(chunks, b"")
                if not pending:
                    raise _DamagedError(f"{kind} frame {frame} is cut off")
        except (zlib.error, zstandard.ZstdError) as error:
            raise _DamagedError(f"{kind} frame {frame} is broken: {error}") from error
        pending = decoder.unused_data or next(chunks, b"")


def _skip(pending: bytes, chunks: Iterator[bytes]) -> bytes:
    size = 8 + int.from_bytes(pending[4:8], "little")
    while len(pending) < size and (more := next(chunks, b"")):
        pending += more
    if len(pending) < size:
        raise _DamagedError("a skippable zstd frame is cut off")
    return pending[size:] or next(chunks, b"")
