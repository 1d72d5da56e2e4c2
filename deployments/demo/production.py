"""The demo's production side: one stable replica behind Envoy, its users, its gateway log."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deployments.demo.load import Load
from infra.engine.catalogue import load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.embedded import cpu_dtype, embedded_model
from infra.engine.environment import home
from infra.errors import RatchetError
from infra.metrics.reader import MetricReadFailed, MetricsReader
from infra.settings.production import ProductionSettings
from infra.stack.control import open_stack_store
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.traffic.fleet import LocalFleet
from infra.traffic.gateway_log import ship_spool, traffic_prefix
from infra.traffic.generator import TrafficOptions, TrafficStats, start_traffic_process
from infra.traffic.shape import TrafficShape
from tasks.shared.records import Target, Window

SERVED_MODEL = "SmolLM2-135M-Instruct"


def old_configuration() -> ServingConfig:
    """What production serves with before: settings carried over from an old engine version, when prefix caching did
    not exist and two sequences at a time were thought safe. Chosen so that there is a real gain to find."""
    catalogue = load_catalogue(home().knobs)
    return ServingConfig(
        engine_build=catalogue.engine_build,
        model=embedded_model(home()),
        args={
            "dtype": cpu_dtype(),
            "enforce_eager": True,
            "max_model_len": 1024,
            "block_size": 32,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 1024,
            "enable_prefix_caching": False,
            "enable_prompt_tokens_details": True,
            "kv_cache_memory_bytes": 536870912,
        },
        env={
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
    )


def demo_target(campaign: str) -> Target:
    """A target of its own for each demo: its ledger is empty, so that no idea is refused from memory."""
    return Target(model=SERVED_MODEL, pool=campaign)


class Played(NamedTuple):
    """One window of production, and the part of it before its peak."""

    window: Window
    recorded: Window


def wait_until_scraped(prometheus_url: str, port: int, *, scrapes: int = 3, timeout_s: float = 60.0) -> None:
    """Wait until Prometheus has read the replica a few times: a window that begins earlier is no measurement.

    Raises:
        RatchetError: it did not within `timeout_s`.
    """
    reader = MetricsReader(prometheus_url, 5.0)
    query = f'sum_over_time(up{{job="engines",instance="127.0.0.1:{port}"}}[10s])'
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            found = reader.instant(query, time.time())
        except MetricReadFailed:
            found = ()
        if any(series.value >= scrapes for series in found):
            return
        time.sleep(0.5)
    raise RatchetError(
        f"Prometheus did not scrape the replica on port {port} within {timeout_s:.0f} s",
        remedy="`ratchet stack status`, and Prometheus' log in the state folder",
    )


class Users:
    """Traffic through Envoy, and its log in S3."""

    def __init__(self, state: Path, target: Target, load: Load) -> None:
        self._state = state
        self._load = load
        self._spool = state / "spool"
        self._prefix = traffic_prefix(target.key)

    @property
    def prefix(self) -> str:
        """Where the gateway's log lies in S3."""
        return self._prefix

    @property
    def phases(self) -> tuple[int, int]:
        """The stretches of traffic that a window before and one after play."""
        return self._load.phases

    def _options(
        self,
        shape: TrafficShape,
        seed: int,
        phase: int,
        windows: int | None,
    ) -> TrafficOptions:
        base_url = f"{stack_addresses(StackPaths(self._state)).envoy}/v1"
        return TrafficOptions(
            base_url=base_url,
            model=SERVED_MODEL,
            shape=shape,
            window_s=self._load.window_s,
            seed=seed,
            phase=phase,
            windows=windows,
            timeout_s=self._load.timeout_s,
        )

    def _ship(self) -> None:
        ship_spool(self._spool, open_stack_store(self._state).put_once)

    def play(self, phase: int, seed: int) -> Played:
        """One window from an empty queue to an empty queue; returns when and logs it to S3.

        Raises:
            RatchetError: the generator failed; its message says why.
        """
        shutil.rmtree(self._spool, ignore_errors=True)
        fleet = LocalFleet(ProductionSettings(state_dir=self._state))
        wait_until_scraped(stack_addresses(StackPaths(self._state)).prometheus, fleet.address("stable")[1])
        start_s = time.time()
        child = start_traffic_process(self._options(self._load.shape, seed, phase, 1), self._spool, self._prefix)
        try:
            said, errors = child.communicate(timeout=self._load.window_s + 2 * self._load.timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise RatchetError(
                "production's users did not come to an end: the stable replica does not keep up",
                remedy="See the replica's log in the state folder",
            ) from None
        if child.returncode != 0:
            raise RatchetError(f"the traffic generator failed: {errors.decode(errors='replace').strip()[-300:]}")
        end_s = time.time()
        self._ship()
        # The process takes a second to come up: its own clock says when the plan began.
        first_s = TrafficStats.model_validate_json(said).window_starts_epoch_s[0]
        recorded = Window(start_s=first_s, end_s=first_s + self._load.recorded_s)
        return Played(Window(start_s=start_s, end_s=end_s), recorded)

    @contextlib.contextmanager
    def busy(self, seed: int) -> Iterator[None]:
        """Steady traffic for the length of the block, logged like any other."""
        child = start_traffic_process(self._options(self._load.steady_shape, seed, 3, None), self._spool, self._prefix)
        try:
            yield
        finally:
            child.terminate()
            try:
                child.communicate(timeout=self._load.timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
            self._ship()
