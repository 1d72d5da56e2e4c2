"""The one exception family that reaches a person: what was wrong, where, and what to do."""

from __future__ import annotations

import errno
import os


class RatchetError(Exception):
    """A fault that a person can act on; the command line prints it in one line and exits with 2.

    Args:
        message: what was wrong and where (names the file, key, address or value).
        remedy: what to do about it; empty when the message already says so.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


class BadInput(RatchetError):
    """What was handed in is not usable: a file, a parameter, a value, a unit."""


class Unreachable(RatchetError):
    """A part of the stack did not answer; nothing is known, so nothing may be concluded."""


_REMEDIES = {
    errno.ENOSPC: "Free space on that disk, then repeat; a file is written whole or not at all",
    errno.EDQUOT: "Free space within the quota, then repeat; a file is written whole or not at all",
    errno.EFBIG: "Raise the limit on file sizes (`ulimit -f`), then repeat",
    errno.EROFS: "Choose a folder that can be written",
    errno.EACCES: "Choose a place that this user may read and write",
    errno.EPERM: "Choose a place that this user may read and write",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: "A part of the path is a file; choose another path",
    errno.ENOENT: "Check the path",
}


def os_fault(error: OSError, doing: str = "") -> BadInput:
    """A fault of the operating system as one line: what was done, the file, what is wrong, what to do.

    Args:
        doing: what could not be done, with the file's name; empty to name the file that the error names.
    """
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    what = doing or " -> ".join(named) or type(error).__name__
    why = error.strerror or " ".join(str(error).split()) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "See whether that file, disk or address can be used, then repeat")
    return BadInput(f"{what}: {why}", remedy=remedy)
