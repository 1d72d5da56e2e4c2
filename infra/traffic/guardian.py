"""A small process beside the orchestrator. It knows one action: weight 0.

It watches the lease of a target's rollout. When a lease was seen and is neither live nor released, or the store
has not answered for as long as the lease may live, the canary's weight is set to 0 through Envoy's file alone.

    python -m infra.traffic.guardian --state DIR --target KEY [--ttl 10]

Prometheus of the stack scrapes it as job `ratchet`: what the lease is, when it was last looked at, how often it acted.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, start_http_server

from infra.connect import open_store
from infra.errors import RatchetError
from infra.lease import read_lease
from infra.stack.control import open_stack_store
from infra.stack.paths import StackPaths
from infra.stack.targets import set_targets
from infra.traffic.switch import zero_weight_file

LOG = logging.getLogger("guardian")
Seen = Literal["none", "live", "released", "expired", "unknown"]


def needs_zero(seen: Seen, last_live_s: float | None, now_s: float, ttl_s: float) -> bool:
    """Whether the canary has lost its keeper. Pure.

    Args:
        last_live_s: when the lease was last seen alive; None: never since this guardian started.
    """
    if seen == "expired":
        return True
    if seen == "unknown":
        return last_live_s is not None and now_s - last_live_s > ttl_s
    return False


class Guardian:
    """One target's guardian.

    Args:
        look: what the lease is now; raises RatchetError when that cannot be known.
        zero: sends everything to stable.
    """

    def __init__(self, look: Callable[[], Seen], zero: Callable[[], None], ttl_s: float) -> None:
        self._look, self._zero, self._ttl_s = look, zero, ttl_s
        self._last_live_s: float | None = None
        self._said = False

    def once(self, now_s: float) -> bool:
        """One look; True when it acted. It goes on acting while the lease is lost: a late tick may have set the weight
        again in between."""
        try:
            seen = self._look()
        except (RatchetError, OSError) as error:
            LOG.warning("the lease cannot be read: %s", error)
            seen = "unknown"
        if seen == "live":
            self._last_live_s, self._said = now_s, False
        if not needs_zero(seen, self._last_live_s, now_s, self._ttl_s):
            return False
        if not self._said:
            LOG.error("the rollout's lease is %s: canary to weight 0", seen)
        try:
            self._zero()
            self._said = True
        except OSError as error:
            LOG.error("weight 0 could not be written, tried again: %s", error)
        return True


def lease_state(state_dir: Path, target: str, now_s: float) -> Seen:
    """What the rollout's lease of a target is."""
    store = open_store() if "RATCHET_S3_ENDPOINT_URL" in os.environ else open_stack_store(state_dir)
    record = read_lease(store, f"rollout/{target}")
    if record is None:
        return "none"
    if record.released:
        return "released"
    return "live" if record.live(now_s) else "expired"


class Watched:
    """What Prometheus reads of a guardian."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self.registry = CollectorRegistry()
        self._look = look
        self._lease = Enum(
            "ratchet_rollout_lease", "The rollout's lease", states=get_args(Seen), registry=self.registry
        )  # fmt: skip
        self._looked = Gauge(
            "ratchet_guardian_looked_timestamp_seconds", "When the lease was last looked at", registry=self.registry
        )  # fmt: skip
        self.acted = Counter(
            "ratchet_guardian_zeroes", "Looks after which weight 0 was written", registry=self.registry
        )

    def look(self) -> Seen:
        """The look itself, counted; a fault is `unknown`, and goes on to the guardian."""
        self._looked.set(time.time())
        self._lease.state("unknown")
        seen = self._look()
        self._lease.state(seen)
        return seen

    @contextmanager
    def scraped(self, paths: StackPaths, target: str) -> Iterator[None]:
        """Prometheus reads it while the block runs."""
        labels = {"role": f"guardian_{hashlib.sha256(target.encode()).hexdigest()[:8]}", "target": target}
        try:
            server, _ = start_http_server(0, addr="127.0.0.1", registry=self.registry)
            set_targets(paths, "ratchet", [f"127.0.0.1:{server.server_port}"], labels)
        except OSError as error:
            LOG.warning("Prometheus will not see this guardian, which watches all the same: %s", error)
            yield
            return
        try:
            yield
        finally:
            with suppress(OSError):
                set_targets(paths, "ratchet", [], labels)
            server.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """The process; ends with SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m infra.traffic.guardian")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--ttl", type=float, default=10.0, help="seconds after which an unreadable lease is lost")
    parser.add_argument("--period", type=float, default=1.0)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    paths = StackPaths(given.state)
    watched = Watched(lambda: lease_state(given.state, given.target, time.time()))
    guardian = Guardian(watched.look, lambda: zero_weight_file(paths.runtime_file), given.ttl)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    LOG.info("watching the rollout of %s", given.target)
    with watched.scraped(paths, given.target):
        while True:
            if guardian.once(time.time()):
                watched.acted.inc()
            time.sleep(given.period)


if __name__ == "__main__":
    sys.exit(main())
