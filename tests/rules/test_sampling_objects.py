"""Reading logs: compression, damage, bad lines, foreign formats."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
import zstandard

from infra.sampling import EmptyPool, TooManyBadLines, draw_sample, objects_from_dir, objects_from_s3

TRACES = Path(os.environ.get("RATCHET_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no public traces: set RATCHET_TRACES to their folder")


def line(number: int) -> bytes:
    return json.dumps(
        {
            "request_id": f"r{number}",
            "t_epoch_s": number,
            "prompt_tokens": 9,
            "output_tokens": 3,
            "messages": [{"role": "user", "content": f"q{number} {os.urandom(30).hex()}"}],
        }
    ).encode()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def read(data: bytes, name: str = "x.jsonl", **options):
    sample, manifest = draw_sample([(name, data)], seed=1, share=1.0, **options)
    return sorted(e.request_id for e in sample.entries), manifest


SKIPPABLE = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"


@pytest.mark.parametrize(
    "data",
    [
        zstd(line(1) + b"\n") + zstd(line(2) + b"\n"),
        gzip.compress(line(1) + b"\n") + gzip.compress(line(2) + b"\n"),
        gzip.compress(line(1) + b"\n" + line(2)),
        gzip.compress(gzip.compress(line(1) + b"\n" + line(2))),
        gzip.compress(line(1) + b"\n") + zstd(line(2)),
        zstd(line(1) + b"\n") + SKIPPABLE + zstd(line(2)),
        gzip.compress(line(1) + b"\n" + line(2)) + b"\0" * 512,
        line(1) + b"\r\n\r\n" + line(2),
        b"\xef\xbb\xbf" + line(1) + b"\n" + line(2) + b"\n",
    ],
    ids=["zstd+zstd", "gzip+gzip", "gzip", "gzip-of-gzip", "gzip+zstd", "skippable", "padded", "crlf", "bom"],
)
def test_SA3_every_frame_is_read_whatever_the_name_says(data):
    found, manifest = read(data)
    assert found == ["r1", "r2"]
    assert (manifest.lines, manifest.damaged_objects, manifest.bad_lines) == (2, {}, 0)


@pytest.mark.parametrize(("compress", "kind"), [(gzip.compress, "gzip"), (zstd, "zstd")])
def test_SA3_a_truncated_object_is_named_as_damaged_and_its_whole_lines_are_kept(compress, kind):
    whole = compress(line(1) + b"\n")
    cut = compress(b"\n".join(line(i) for i in range(2, 3000)))
    found, manifest = read(whole + cut[: len(cut) // 2], "hour-03")
    assert manifest.damaged_objects == {"hour-03": f"{kind} frame 2 is cut off"}
    assert "r1" in found


def test_SA3_bytes_that_are_no_frame_are_damage():
    _, manifest = read(gzip.compress(line(1) + b"\n") + b"garbage that follows", "o")
    assert manifest.damaged_objects == {"o": "bytes that are no frame follow frame 1"}


def test_SA3_one_bad_line_among_three_is_counted_and_named():
    found, manifest = read(line(1) + b"\n{broken\n" + line(3), "o")
    assert found == ["r1", "r3"]
    assert (manifest.bad_lines, manifest.lines) == (1, 3)
    assert manifest.first_bad_lines[0].startswith("o, line 2: ")


def test_SA3_bad_lines_above_the_limit_fail():
    with pytest.raises(TooManyBadLines, match="1 of 3 lines"):
        read(line(1) + b"\n{broken\n" + line(3), bad_lines_allowed=0)


def test_objects_come_from_a_listing_and_a_getter_alike(tmp_path):
    (tmp_path / "03").mkdir()
    data = line(1)
    (tmp_path / "03" / "part-1").write_bytes(data)
    (tmp_path / ".hidden").write_bytes(b"not a log")
    store = {"traffic/03/part-1": data}
    listed = list(objects_from_s3(lambda p: [k for k in store if k.startswith(p)], store.__getitem__, "traffic/"))
    assert [data for _, data in objects_from_dir(tmp_path)] == [data for _, data in listed]


def test_BurstGPT_rows_come_through_the_same_door():
    header = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    csv = header + b"5,ChatGPT,472,18,490,x\n9,y,3,0,3,x\n"
    sample, manifest = draw_sample([("burst.csv", csv)], seed=1, share=1.0)
    assert [(e.arrival_s, e.prompt_tokens, e.output_tokens) for e in sample.entries] == [(0.0, 472, 18)]
    assert manifest.dropped == {"failed without output": 1}


@needs_traces
def test_the_Azure_trace_has_its_published_figures():
    data = (TRACES / "azure-2023-conv.csv").read_bytes()
    sample, manifest = draw_sample([("azure", data)], seed=1, share=1.0)
    assert len(sample.entries) == 19_366
    assert sorted(e.prompt_tokens for e in sample.entries)[19_366 // 2] == 1020
    assert manifest.interarrival_cv_pool == pytest.approx(1.09, abs=0.01)
    assert sample.duration_s == pytest.approx(3502, abs=1)


@needs_traces
def test_the_Mooncake_trace_is_read_in_milliseconds_with_its_prefixes():
    data = (TRACES / "mooncake-conversation.jsonl").read_bytes()
    sample, manifest = draw_sample([("mooncake", data)], seed=1, n=500)
    assert (manifest.requests_pool, len(sample.entries)) == (12_031, 500)
    assert sample.duration_s < 3600
    assert manifest.prefix_reuse_pool == pytest.approx(0.366, abs=0.01)
    assert any("clock is coarse" in note for note in manifest.notes)


@pytest.mark.parametrize(
    "bad",
    [
        b"[" * 100_000,
        b'{"t_epoch_s": 1, "prompt_tokens": 9, "output_tokens": 3, "id": "\\ud800", "messages": [{"content": "x"}]}',
        b'{"t_epoch_s": 1, "prompt_tokens": 9, "output_tokens": 3, "id": "a", "messages": [{"content": "\\uDC00"}]}',
    ],
)
def test_SA3_a_line_that_no_parser_takes_is_one_bad_line(bad):
    ids, manifest = read(line(1) + b"\n" + bad + b"\n" + line(2))
    assert ids == ["r1", "r2"]
    assert manifest.bad_lines == 1


def test_a_whole_character_beyond_the_basic_plane_is_kept():
    ids, _ = read(line(1).replace(b'"r1"', b'"r1 \\ud83d\\ude00"'))
    assert ids == ["r1 \U0001f600"]


@pytest.mark.parametrize(
    "foreign", [line(1).decode().encode("utf-16"), bz2.compress(line(1)), lzma.compress(line(1)), zstd(line(1))[:2]]
)
def test_SA3_an_object_of_another_form_is_named_and_the_others_are_read(foreign):
    sample, manifest = draw_sample([("foreign", foreign), ("good", line(2))], seed=1, share=1.0)
    assert [e.request_id for e in sample.entries] == ["r2"]
    assert "no text of a log" in manifest.damaged_objects["foreign"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(line(1) + b"\n")[:-12], "damaged, x.jsonl: gzip frame 1 is cut off"),
        (gzip.compress(line(1)) + gzip.compress(line(2)), "1 lines could not be read"),
    ],
)
def test_SA3_nothing_readable_says_why(data, why):
    with pytest.raises(EmptyPool, match=why):
        read(data)


def test_the_documented_line_is_read_as_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text()
    line = page.split("```json\n")[1].split("```")[0].encode()
    sample, _ = draw_sample([("part-1.jsonl", line)], n=1, seed=1)
    (entry,) = sample.entries
    assert (entry.request_id, entry.conversation_id, entry.prompt_tokens, entry.output_tokens) == ("r-1", "c-7", 21, 9)
    assert [message["role"] for message in entry.messages] == ["system", "user"]
    assert json.loads(line)["t_epoch_s"] == pytest.approx(1796083200.125)
