"""A fleet of stub servers behind a real Envoy: faults of replicas on demand, no engine."""

from __future__ import annotations

from collections.abc import Callable

from infra.engine.config import ServingConfig
from infra.traffic.fleet import FleetError
from infra.traffic.switch import EnvoySwitch


class StubFleet:
    """Speaks what the canary stage asks of a fleet.

    Args:
        ports: address of each role's stub server.
        fails: how often `ensure` of a role fails before it works; a large number for always.
    """

    def __init__(
        self, switch: EnvoySwitch, ports: dict[str, int], stable: ServingConfig, fails: dict[str, int] | None = None
    ) -> None:
        self.switch, self.ports = switch, ports
        self.serving: dict[str, ServingConfig] = {"stable": stable}
        self.fails = fails or {}
        self.calls: list[tuple[str, str]] = []
        self.renewed: list[str] = []
        switch.set_endpoint("stable", "127.0.0.1", ports["stable"])

    def ensure(self, role: str, config: ServingConfig, *, renew: Callable[[], None] | None = None) -> None:
        self.calls.append((role, config.config_hash()))
        if self.fails.get(role, 0) > 0:
            self.fails[role] -= 1
            raise FleetError(f"the {role} replica did not come up: oom_start during start, exit code 1: MemoryError")
        self.serving[role] = config
        self.switch.set_endpoint(role, "127.0.0.1", self.ports[role])

    def address(self, role: str) -> tuple[str, int]:
        if role not in self.serving:
            raise FleetError(f"no {role} replica runs")
        return "127.0.0.1", self.ports[role]

    def alive(self, role: str) -> bool:
        return role in self.serving

    def serves(self, role: str, config: ServingConfig) -> bool:
        return role in self.serving and self.serving[role].config_hash() == config.config_hash()

    def last_words(self, role: str) -> str:
        return f"{role} said nothing"

    def drain_and_retire(
        self, role: str, switch: EnvoySwitch, wait_s: float = 60.0, *, renew: Callable[[], None] | None = None
    ) -> None:
        if renew is not None:
            renew()
            self.renewed.append(role)
        self.serving.pop(role, None)
        if role == "canary":
            switch.clear_endpoint("canary")
