"""Reads files from the committed revision, never from the working tree (spec C3)."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from infra.errors import BadInput


class CommittedFile(BaseModel):
    """A file as the commit holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    commit: str
    blob: str
    text: str
    working_tree_differs: bool


def _git(folder: Path, *args: str) -> bytes:
    try:
        done = subprocess.run(["git", *args], cwd=folder, capture_output=True, timeout=30, check=False)  # noqa: S607
    except FileNotFoundError:
        raise BadInput("git is not installed, so no committed revision can be read", remedy="Install git") from None
    if done.returncode != 0:
        raise BadInput(f"git {args[0]} failed in {folder}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def committed_file(path: Path) -> CommittedFile:
    """The text of `path` at HEAD.

    Raises:
        BadInput: the path is not in a git checkout, or HEAD does not hold it.
    """
    path = path.resolve()
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder")
    top = Path(_git(path.parent, "rev-parse", "--show-toplevel").decode().strip())
    relative = path.relative_to(top).as_posix()
    commit = _git(top, "rev-parse", "HEAD").decode().strip()
    try:
        blob = _git(top, "rev-parse", f"HEAD:{relative}").decode().strip()
    except BadInput:
        raise BadInput(
            f"{relative} is not committed at {commit[:12]}",
            remedy="Criteria count only when they are committed: git add and commit it",
        ) from None
    raw = _git(top, "cat-file", "blob", blob)
    differs = not path.exists() or path.read_bytes() != raw
    return CommittedFile(path=relative, commit=commit, blob=blob, text=raw.decode(), working_tree_differs=differs)


def is_committed_blob(path: Path) -> bool:
    """Whether the bytes of `path` are exactly those of the committed file of that name."""
    try:
        return not committed_file(path).working_tree_differs
    except BadInput:
        return False


def text_hash(text: str) -> str:
    """sha256 of a text, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
