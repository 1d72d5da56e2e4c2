"""What a stack knows about itself: the files it writes and the status it reports."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from infra.errors import RatchetError

PARTS: tuple[str, ...] = ("s3", "prometheus", "envoy", "prefect")
BUCKET = "ratchet"


class StackError(RatchetError):
    """The stack could not be brought up or down; names the part and its log."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StackFile(_Frozen):
    """stack.json: what is wanted and where it listens."""

    parts: tuple[str, ...] = Field(default=(), description="wanted parts, a subset of PARTS")
    ports: dict[str, int] = Field(default_factory=dict, description="listener name to TCP port")


class PartProcess(_Frozen):
    """One started process, recognisable after a reboot or a reused pid."""

    pid: int
    create_time: float = Field(description="seconds since the epoch, for people; moves when the clock is set")
    start_ticks: int = Field(description="clock ticks from boot to its start; never moves")
    boot_id: str = Field(description="the kernel's name for this boot")
    ports: dict[str, int] = Field(default_factory=dict)
    since: datetime = Field(description="start of this process, UTC")
    restarts: int = Field(default=0, description="how often the supervisor started the part again")
    last_exit: str = Field(default="", description="how its predecessor ended; empty for the first")


class PartsFile(_Frozen):
    """parts.json: written by the supervisor alone."""

    supervisor: PartProcess
    parts: dict[str, PartProcess] = Field(default_factory=dict)


class S3Key(_Frozen):
    """One S3 identity."""

    access_key: str
    secret_key: SecretStr


class Credentials(_Frozen):
    """Both identities of the embedded object store."""

    admin: S3Key = Field(description="reads and writes")
    agent: S3Key = Field(description="reads and lists only")


class PartStatus(_Frozen):
    """One part as a probe found it just now."""

    name: str
    up: bool
    address: str = Field(default="", description="http://host:port; empty where none was ever chosen")
    pid: int | None = None
    since: datetime | None = Field(default=None, description="start of the running process, UTC")
    restarts: int = 0
    wrong: str = Field(default="", description="why it is not up; empty when it is")


class StackStatus(_Frozen):
    """The stack as it is now."""

    state_dir: Path
    supervisor: PartStatus
    parts: tuple[PartStatus, ...] = Field(description="the wanted parts, in the order of PARTS")

    @property
    def ok(self) -> bool:
        """Whether the supervisor lives and every wanted part answers its probe; False for no parts."""
        return self.supervisor.up and bool(self.parts) and all(part.up for part in self.parts)

    def part(self, name: str) -> PartStatus:
        """The status of one wanted part.

        Raises:
            StackError: the part is not among the wanted ones.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise StackError(
            f"the stack in {self.state_dir} has no part {name!r}",
            remedy=f"Start it: `ratchet stack up` (parts: {', '.join(PARTS)})",
        )


class StackAddresses(_Frozen):
    """Where the listeners of a stack are, as last chosen; http://127.0.0.1:port, empty where not chosen."""

    s3: str = ""
    prometheus: str = ""
    envoy: str = Field(default="", description="where clients send requests")
    envoy_admin: str = ""
    prefect: str = Field(default="", description="ends in /api")
