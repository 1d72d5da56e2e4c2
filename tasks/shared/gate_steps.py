"""Stops a stage whose data-quality gate did not pass."""

from __future__ import annotations

from infra.quality.suite import GateResult
from tasks.shared.stops import GateFailed


def stop_on(gate: GateResult) -> None:
    """End the stage when its gate did not pass.

    Raises:
        GateFailed: names the gate and everything that failed in it.
    """
    if not gate.passed:
        raise GateFailed(
            f"data-quality gate `{gate.name}` failed: {'; '.join(gate.failures)}",
            remedy="Nothing was measured or changed; mend the data and start again",
        )
