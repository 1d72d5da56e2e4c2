from __future__ import annotations

import pytest

from infra.errors import Unreachable
from infra.traffic.guardian import Guardian, Seen, needs_zero


@pytest.mark.parametrize(
    ("acts", "seen", "last_live_s"),
    [
        (False, "none", None),
        (False, "live", 99.0),
        (False, "released", 99.0),
        (True, "expired", 99.0),
        (True, "expired", None),  # started after the loss: the canary still has no keeper
        (False, "unknown", None),
        (False, "unknown", 95.0),
        (True, "unknown", 89.0),  # nobody could renew a lease in a store that is away
    ],
)
def test_R7_the_guardian_acts_when_the_lease_is_lost(acts: bool, seen: Seen, last_live_s: float | None) -> None:
    assert needs_zero(seen, last_live_s, 100.0, 10.0) is acts


def test_R7_the_guardian_goes_on_acting_while_the_lease_is_lost() -> None:
    seen: list[Seen] = ["live", "expired", "expired", "live", "expired"]
    zeroed: list[int] = []
    guardian = Guardian(lambda: seen[len(looks) - 1], lambda: zeroed.append(len(looks)), 10.0)
    looks: list[int] = []
    for second in range(5):
        looks.append(second)
        guardian.once(float(second))
    assert zeroed == [2, 3, 5]


def test_R7_an_unreadable_store_is_no_proof_until_the_lease_must_have_ended() -> None:
    def look() -> Seen:
        if now[0] > 0:
            raise Unreachable("S3 is away")
        return "live"

    now, zeroed = [0.0], []
    guardian = Guardian(look, lambda: zeroed.append(now[0]), 10.0)
    for second in (0.0, 5.0, 10.0, 11.0, 12.0):
        now[0] = second
        guardian.once(second)
    assert zeroed == [11.0, 12.0]
