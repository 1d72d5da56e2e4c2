"""A small process beside the orchestrator. It knows one action: weight 0.

It watches the lease of a target's rollout. When a lease was seen and is neither live nor released, or the store
has not answered for as long as the lease may live, the canary's weight is set to 0 through Envoy's file alone.

    python -m infra.traffic.guardian --state DIR --target KEY [--ttl 10]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from infra.connect import open_store
from infra.errors import RatchetError
from infra.lease import read_lease
from infra.stack.control import open_stack_store
from infra.stack.paths import StackPaths
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


def main(argv: Sequence[str] | None = None) -> int:
    """The process; ends with SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m infra.traffic.guardian")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--ttl", type=float, default=10.0, help="seconds after which an unreadable lease is lost")
    parser.add_argument("--period", type=float, default=1.0)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    file = StackPaths(given.state).runtime_file
    guardian = Guardian(
        lambda: lease_state(given.state, given.target, time.time()), lambda: zero_weight_file(file), given.ttl
    )
    LOG.info("watching the rollout of %s", given.target)
    while True:
        guardian.once(time.time())
        time.sleep(given.period)


if __name__ == "__main__":
    sys.exit(main())
