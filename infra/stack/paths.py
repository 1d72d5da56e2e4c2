"""Where a stack keeps its files. Everything lies under one state folder that only its owner can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StackPaths:
    """Paths of one stack; `state_dir` is made absolute, nothing is created before `prepare()`."""

    state_dir: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_dir", Path(self.state_dir).expanduser().resolve())

    def prepare(self) -> None:
        """Create the folders that are missing, readable by their owner only."""
        for folder in (
            self.state_dir,
            self.logs_dir,
            self.s3_dir,
            self.s3_data_dir,
            self.prometheus_dir,
            self.targets_dir,
            self.envoy_dir,
            self.runtime_dir,
            self.eds_dir,
            self.prefect_dir,
        ):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def marker(self) -> str:
        """Value of RATCHET_STACK in the environment of every process of this stack."""
        return str(self.state_dir)

    @property
    def stack_file(self) -> Path:
        """Wanted parts and chosen ports."""
        return self.state_dir / "stack.json"

    @property
    def parts_file(self) -> Path:
        """What the supervisor last started: pids, create times, ports."""
        return self.state_dir / "parts.json"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.state_dir / "stack.lock"

    @property
    def command_lock(self) -> Path:
        """Held while one `up` or `down` is at work."""
        return self.state_dir / "command.lock"

    @property
    def edit_lock(self) -> Path:
        """Held for the moment of changing stack.json."""
        return self.state_dir / "edit.lock"

    @property
    def credentials_file(self) -> Path:
        """Keys of both S3 identities, mode 600."""
        return self.state_dir / "credentials.json"

    @property
    def logs_dir(self) -> Path:
        """One log file per part."""
        return self.state_dir / "logs"

    def log_file(self, part: str) -> Path:
        """Standard output and error of one part."""
        return self.logs_dir / f"{part}.log"

    @property
    def s3_dir(self) -> Path:
        """Working folder of the object store: identities and internal keys."""
        return self.state_dir / "s3"

    @property
    def s3_data_dir(self) -> Path:
        """The objects."""
        return self.s3_dir / "data"

    @property
    def prometheus_dir(self) -> Path:
        """Configuration and time series."""
        return self.state_dir / "prometheus"

    @property
    def targets_dir(self) -> Path:
        """Scrape targets, one file per group."""
        return self.prometheus_dir / "targets"

    @property
    def envoy_dir(self) -> Path:
        """Envoy's bootstrap and what can be changed while it runs."""
        return self.state_dir / "envoy"

    @property
    def runtime_dir(self) -> Path:
        """Folder that Envoy watches for the weight."""
        return self.envoy_dir / "runtime"

    @property
    def runtime_file(self) -> Path:
        """The weight of the canary."""
        return self.runtime_dir / "rtds.json"

    @property
    def eds_dir(self) -> Path:
        """Folder that Envoy watches for the arms' addresses."""
        return self.envoy_dir / "eds"

    @property
    def prefect_dir(self) -> Path:
        """Prefect's home and SQLite database."""
        return self.state_dir / "prefect"
