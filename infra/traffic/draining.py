"""When a replaced replica has answered its last request: Envoy holds no connection to it any more.

The engine's own gauges cannot tell: they change once per scheduler step, and a request that has arrived and not been
scheduled yet is in none of them. Envoy, once an address has left an arm, closes its idle connections to it at once and
each busy one at the end of its request.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from infra.stack import processes
from infra.stack.files import read_parts
from infra.stack.paths import StackPaths

DRAIN_S = 60.0
"""How long a stream that began before a replacement may go on."""

_POLL_S = 0.2
# Envoy's workers take a new address over one by one, milliseconds after it is shown as in force.
_QUIET_POLLS = 3


def proxied_connections(paths: StackPaths, port: int) -> int:
    """Connections that the stack's Envoy holds to a port of this host; 0 where no Envoy runs."""
    parts = read_parts(paths)
    recorded = parts.parts.get("envoy") if parts is not None else None
    envoy = processes.find(recorded) if recorded is not None else None
    if envoy is None:
        return 0
    try:
        held = envoy.net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return 0
    return sum(1 for one in held if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED)


def wait_until_drained(
    paths: StackPaths, port: int, *, renew: Callable[[], None] | None = None, wait_s: float = DRAIN_S
) -> bool:
    """Wait until Envoy has let go of a port that is no longer an arm's address.

    Args:
        paths: the stack's folder.
        port: where the replaced replica listens.
        renew: called all the while.
        wait_s: how long at most; a stream may last.

    Returns:
        Whether it did.
    """
    deadline = time.monotonic() + wait_s
    quiet = 0
    while time.monotonic() < deadline:
        quiet = quiet + 1 if proxied_connections(paths, port) == 0 else 0
        if quiet == _QUIET_POLLS:
            return True
        if renew is not None:
            renew()
        time.sleep(_POLL_S)
    return False
