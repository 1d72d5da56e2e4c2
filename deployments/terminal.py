"""Where the command line prints to."""

from __future__ import annotations

import sys

from rich.console import Console

NO_WIDTH = 10_000


def console() -> Console:
    """A console that breaks lines for a terminal only: a file or a pipe has no width."""
    return Console(width=None if sys.stdout.isatty() else NO_WIDTH)
