"""A full disk, a folder in place of a file, a place that cannot be written: one line that says what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.params import load_params
from deployments.report.html import write_text_atomically
from infra.errors import BadInput, os_fault
from infra.sampling.files import write_atomically


@pytest.mark.parametrize("write", [lambda p: write_atomically(p, b"new"), lambda p: write_text_atomically(p, "new")])
def test_a_full_disk_is_bad_input_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "result.json"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"cannot write .*result\.json: No space left on device\. Free space"):
        write(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("write", [lambda p: write_atomically(p, b"new"), lambda p: write_text_atomically(p, "new")])
def test_a_place_that_cannot_be_written_is_bad_input(write: Callable[[Path], None]) -> None:
    with pytest.raises(BadInput, match=r"cannot write /dev/null/x/r\.html: Not a directory"):
        write(Path("/dev/null/x/r.html"))


def test_parameters_that_are_no_file_or_no_text_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Is a directory\. Name a file"):
        load_params(tmp_path)
    (tmp_path / "p.yaml").write_bytes(b"campaign: \xff")
    with pytest.raises(BadInput, match="is no text"):
        load_params(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("/a/b: Is a directory. Name a file, not a folder", IsADirectoryError(errno.EISDIR, "Is a directory", "/a/b")),
        ("/a -> /b: Read-only file system", OSError(errno.EROFS, "Read-only file system", "/a", None, "/b")),
        ("ConnectionResetError: gone away", ConnectionResetError("gone\naway")),
    ],
)
def test_a_fault_of_the_system_is_one_line_with_file_cause_and_remedy(said: str, error: OSError) -> None:
    line = str(os_fault(error))
    assert line.startswith(said)
    assert len(line.splitlines()) == 1
