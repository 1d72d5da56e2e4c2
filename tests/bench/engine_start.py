"""How much sooner a forked engine serves than one started cold, both in this run, turn by turn.

    python -m tests.bench.engine_start --repeats 3 --core 1

Prints seconds from the start to the first answered completion, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from deployments.demo.production import old_configuration
from infra.engine.catalogue import load_catalogue
from infra.engine.environment import home
from infra.engine.launch import base_env, start_engine, stop, wait_ready
from infra.engine.prefork import PreforkServer
from infra.stack.ports import port_is_free

OWNER = "ratchet-bench"


def ready_s(prefork: PreforkServer | None, folder: Path, port: int, core: int) -> float:
    """Seconds until the engine answered a completion."""
    config = old_configuration()
    started = time.monotonic()
    engine = start_engine(
        config,
        catalogue=load_catalogue(home().knobs),
        engine_python=home().python,
        model_path=home().model,
        port=port,
        cores=(core,),
        log_path=folder / f"{port}-{time.monotonic_ns()}.log",
        owner=OWNER,
        prefork=prefork,
    )
    try:
        wait_ready(engine, 300)
        return time.monotonic() - started
    finally:
        stop(engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=1)
    given = parser.parse_args()
    port = next(p for p in range(18400, 18500) if port_is_free(p))
    cold: list[float] = []
    forked: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with PreforkServer.start(
            engine_python=home().python,
            config=old_configuration(),
            base_env=base_env(),
            owner=OWNER,
            log_path=folder / "prefork.log",
            cores=(given.core,),
        ) as prefork:
            prefork.wait_ready()
            for turn in range(given.repeats):
                cold.append(ready_s(None, folder, port, given.core))
                forked.append(ready_s(prefork, folder, port, given.core))
                print(f"{turn + 1}: cold {cold[-1]:.1f} s, forked {forked[-1]:.1f} s", flush=True)
    one, two = statistics.median(cold), statistics.median(forked)
    print(f"median of {given.repeats}: cold {one:.1f} s, forked {two:.1f} s: {one / two:.1f} times sooner")


if __name__ == "__main__":
    main()
