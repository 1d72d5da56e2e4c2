"""The one exception family that reaches a person: what was wrong, where, and what to do."""

from __future__ import annotations


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
