"""Which port each listener gets, and whether it is free."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping

from infra.errors import BadInput, RatchetError

# SeaweedFS puts each gRPC listener at its HTTP port + 10,000.
GRPC_OFFSET = 10_000
HIGHEST_WITH_GRPC = 55_000
SEARCH_WIDTH = 2_000

DEFAULT_PORTS: Mapping[str, int] = {
    "s3": 8333,
    "s3_filer": 8888,
    "s3_master": 9333,
    "s3_volume": 9340,
    "s3_admin": 9346,
    "prometheus": 9090,
    "envoy_admin": 9901,
    "envoy": 10_000,
    "prefect": 4200,
}
PORTS_OF_PART: Mapping[str, tuple[str, ...]] = {
    "s3": ("s3", "s3_filer", "s3_master", "s3_volume", "s3_admin"),
    "prometheus": ("prometheus",),
    "envoy": ("envoy_admin", "envoy"),
    "prefect": ("prefect",),
}


class NoFreePort(RatchetError):
    """No free port was found near the wanted one."""


def has_grpc(name: str) -> bool:
    """Whether the listener `name` also takes the port 10,000 higher."""
    return name in PORTS_OF_PART["s3"]


def port_is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too: sockets in TIME_WAIT of a server that just ended are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listener_ports(name: str, port: int) -> tuple[int, ...]:
    """The TCP ports that the listener `name` takes when it is put at `port`."""
    return (port, port + GRPC_OFFSET) if has_grpc(name) else (port,)


def free_port(name: str, wanted: int, taken: Collection[int] = ()) -> int:
    """`wanted` where it is free (with its gRPC port), else the next port above it that is.

    Args:
        name: a key of DEFAULT_PORTS.
        wanted: the port to try first.
        taken: ports that are promised to other listeners of the same stack.

    Raises:
        NoFreePort: none of the next 2,000 ports is free.
    """
    highest = HIGHEST_WITH_GRPC - 1 if has_grpc(name) else 65_535
    for port in range(wanted, min(wanted + SEARCH_WIDTH, highest) + 1):
        needed = listener_ports(name, port)
        if not any(one in taken for one in needed) and all(port_is_free(one) for one in needed):
            return port
    raise NoFreePort(
        f"no free port for {name} from {wanted} upwards",
        remedy=f"Name another one with RATCHET_PORT_{name.upper()}",
    )


def wanted_ports(requested: Mapping[str, int] | None = None) -> dict[str, int]:
    """Ports asked for: the argument first, then RATCHET_PORT_<NAME>; names without either are left out.

    Raises:
        BadInput: an unknown name, or a port that is no number, below 1,024 or too high.
    """
    asked: dict[str, int] = {}
    for name in DEFAULT_PORTS:
        variable = f"RATCHET_PORT_{name.upper()}"
        if text := os.environ.get(variable):
            if not text.isdigit():
                raise BadInput(f"{variable}={text!r} is not a port number")
            asked[name] = int(text)
    asked.update(requested or {})
    for name, port in asked.items():
        if name not in DEFAULT_PORTS:
            raise BadInput(f"no listener is called {name!r}", remedy=f"Names: {', '.join(DEFAULT_PORTS)}")
        top = HIGHEST_WITH_GRPC - 1 if has_grpc(name) else 65_535
        if not 1_024 <= port <= top:
            raise BadInput(f"port {port} for {name} is out of range", remedy=f"Choose 1024 to {top}")
    return asked
