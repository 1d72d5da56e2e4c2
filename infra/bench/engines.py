"""The sandbox's engines: the baseline and one candidate, each on its slot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infra.bench.duet import Design, Order
from infra.bench.lock import sandbox_lock
from infra.bench.measure import Served, Side
from infra.engine.catalogue import Catalogue, load_catalogue
from infra.engine.config import ServingConfig
from infra.engine.environment import home
from infra.engine.errors import EngineFailed as EngineFault
from infra.engine.launch import (
    Engine,
    StartFailed,
    base_env,
    forget_peak_rss,
    health,
    hold,
    move,
    peak_rss_bytes,
    start_engine,
    stop,
    sweep_orphans,
    wait_ready,
)
from infra.engine.legal import check
from infra.engine.prefork import PreforkServer
from infra.engine.readback import differences, effective_config, parsed_arguments
from infra.errors import RatchetError
from infra.settings.sandbox import SandboxSettings
from infra.stack.ports import port_is_free
from infra.store import ObjectStore

OWNER = "ratchet-sandbox"


class EngineFailed(RatchetError):
    """An engine did not serve; `outcome` is its class (case EN6), `detail` what it said."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome
        self.detail = detail


@dataclass(frozen=True)
class Sides:
    """Both engines of a pair."""

    baseline: Served
    candidate: Served


class Bench:
    """Keeps the baseline's engine between trials and starts candidates beside it. Use `open_bench`."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._owner = f"{OWNER}:{settings.work_dir.absolute()}"
        self._home = home()
        self._catalogue: Catalogue = load_catalogue(self._home.knobs)
        self._prefork: PreforkServer | None = None
        self._baseline: Engine | None = None
        self._candidate: Engine | None = None
        self._last_log: Path | None = None
        self.context_tokens = 0
        sweep_orphans(self._owner)

    def prepare(self, config: ServingConfig) -> None:
        """Begin to import the engine, so that the first start does not wait for it. Returns at once."""
        self._fork_server(config)

    def baseline(self, config: ServingConfig) -> Served:
        """The baseline's engine alone, ready; the one from the trial before where it still serves.

        Raises:
            RatchetError: the baseline itself does not serve; no trial can be made.
        """
        if self._baseline is None or self._baseline.config_hash != config.config_hash() or health(self._baseline):
            self.stop_baseline()
            try:
                self._baseline = self._start(config, "baseline")
            except EngineFailed as failure:
                raise RatchetError(
                    f"the baseline itself does not serve in the sandbox: {failure}",
                    remedy="No trial can be compared; see the log in the sandbox's folder",
                ) from None
        return self._served(self._baseline)

    def pair(self, baseline: ServingConfig, candidate: ServingConfig, *, fresh: bool = False) -> Sides:
        """Both engines, ready. The baseline's is kept from the trial before unless `fresh`.

        Raises:
            EngineFailed: the candidate is illegal, did not start, or does not run with what was asked of it.
            RatchetError: the baseline itself does not serve; no trial can be made.
        """
        self.context_tokens = int(baseline.args.get("max_model_len") or 2048)
        violations = check(candidate, self._catalogue)
        if violations:
            raise EngineFailed("invalid_configuration", "; ".join(f"{v.rule}: {v.message}" for v in violations))
        if fresh:
            self.stop_baseline()
        served = self.baseline(baseline)
        self._candidate = self._start(candidate, "candidate")
        for side in ("baseline", "candidate"):
            self.peak_memory(side)  # what it took to load is no part of a run
        return Sides(baseline=served, candidate=self._served(self._candidate))

    @property
    def design(self) -> Design:
        """How two sides share the machine: at once on two slots, or by turns on one."""
        return "duet" if len(self._settings.slots) == 2 else "slices"

    def place(self, order: Order) -> None:
        """Put the engines on their slots while they serve: in order AB the baseline has the first, in BA the second."""
        first, last = self._settings.slots[0], self._settings.slots[-1]
        for engine, cores in (
            (self._baseline, first if order == "AB" else last),
            (self._candidate, last if order == "AB" else first),
        ):
            if engine is not None:
                move(engine, cores)

    def alone(self, side: Side | None) -> None:
        """Let one side alone run and stop the other where it is; None lets both run."""
        for engine, name in ((self._baseline, "baseline"), (self._candidate, "candidate")):
            if engine is not None:
                hold(engine, held=side is not None and name != side)

    def peak_memory(self, side: str) -> float | None:
        """Peak resident memory of one side's processes since it was last asked for, bytes."""
        engine = self._baseline if side == "baseline" else self._candidate
        if engine is None:
            return None
        found = peak_rss_bytes(engine)
        forget_peak_rss(engine)
        return found

    def candidate_death(self) -> tuple[str, str] | None:
        """How the candidate died, as (outcome, what it said); None while it lives."""
        died = None if self._candidate is None else health(self._candidate)
        return None if died is None else (died.kind, died.detail)

    def still_alive(self) -> None:
        """Raises EngineFailed when the candidate died under load: partial numbers are no measurement (case EN6)."""
        if (died := self.candidate_death()) is not None:
            raise EngineFailed(*died)

    def keep_log(self, store: ObjectStore, campaign: str) -> str:
        """The candidate's log in S3; its key, or empty when there is none."""
        if self._last_log is None or not self._last_log.exists():
            return ""
        return store.put_content(f"campaigns/{campaign}/logs", self._last_log.read_bytes()[-1_000_000:], ".log")

    def stop_candidate(self) -> None:
        """End the candidate and verify that nothing of it is left."""
        self._stop(self._candidate)
        self._candidate = None

    def stop_baseline(self) -> None:
        """End the baseline's engine; the next trial starts a new one."""
        self._stop(self._baseline)
        self._baseline = None

    def close(self) -> None:
        """End every engine of the bench."""
        for engine in (self._candidate, self._baseline):
            self._stop(engine)
        self._candidate = self._baseline = None
        if self._prefork is not None:
            self._prefork.close()
            self._prefork = None

    def _served(self, engine: Engine) -> Served:
        return Served(root_url=engine.root_url, model=engine.nonce, pid=engine.pid)

    def _free_port(self) -> int:
        port = self._settings.port_from
        taken = {e.port for e in (self._baseline, self._candidate) if e is not None}
        while port in taken or not port_is_free(port):
            port += 1
        return port

    def _fork_server(self, config: ServingConfig) -> PreforkServer | None:
        if self._prefork is not None and not self._prefork.supports(config):
            self._prefork.close()
            self._prefork = None
        if self._prefork is None:
            with suppress(EngineFault):
                self._prefork = PreforkServer.start(
                    engine_python=self._home.python,
                    config=config,
                    base_env=base_env(),
                    owner=self._owner,
                    log_path=self._settings.work_dir / "prefork.log",
                    cores=self._settings.slots[-1],
                )
        return self._prefork

    def _start(self, config: ServingConfig, side: str) -> Engine:
        log = self._settings.work_dir / f"{side}-{config.config_hash()[:8]}-{time.strftime('%H%M%S')}.log"
        if side == "candidate":
            self._last_log = log
        engine = start_engine(
            config,
            catalogue=self._catalogue,
            engine_python=self._home.python,
            model_path=self._home.model,
            port=self._free_port(),
            cores=self._settings.slots[0 if side == "baseline" else -1],
            log_path=log,
            owner=self._owner,
            prefork=self._fork_server(config),
        )
        try:
            wait_ready(engine, self._settings.ready_timeout_s)
        except StartFailed as failure:
            self._stop(engine)
            raise EngineFailed(failure.outcome.kind, failure.outcome.detail) from None
        except BaseException:
            self._stop(engine)
            raise
        try:
            log_text = log.read_text(errors="replace")
            wrong = [
                d
                for d in differences(
                    config, self._catalogue, parsed=parsed_arguments(log_text), effective=effective_config(engine)
                )
                if d.kind != "unconfirmed"
            ]
        except EngineFault as fault:
            self._stop(engine)
            raise EngineFailed("other", f"the engine does not say what it runs with: {fault}") from None
        if wrong:
            self._stop(engine)
            raise EngineFailed(
                "invalid_configuration",
                "the engine runs with other settings than it was asked for: "
                + "; ".join(f"{d.name} was asked as {d.asked} and is {d.found}" for d in wrong),
            )
        return engine

    def _stop(self, engine: Engine | None) -> None:
        if engine is not None:
            stop(engine)


_OPEN: Bench | None = None
_HELD = ExitStack()


@contextmanager
def open_bench(settings: SandboxSettings) -> Iterator[Bench]:
    """The process's bench. Its engines and the machine's sandbox lock stay until `close_bench`, so that no other
    campaign gets between two trials.

    Raises:
        SandboxBusy: another process measures on this machine.
    """
    global _OPEN  # noqa: PLW0603 - engines outlive one task so that the baseline is not started for every trial
    settings.work_dir.mkdir(parents=True, exist_ok=True)
    if _OPEN is None:
        _HELD.enter_context(sandbox_lock(settings.work_dir.parent / "sandbox.lock"))
        _OPEN = Bench(settings)
    try:
        yield _OPEN
    except BaseException:
        close_bench()
        raise


def close_bench() -> None:
    """End the bench's engines and give the lock back; harmless when none is open."""
    global _OPEN  # noqa: PLW0603 - as above
    try:
        if _OPEN is not None:
            _OPEN.close()
    finally:
        _OPEN = None
        _HELD.close()
