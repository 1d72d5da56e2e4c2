"""The lease against a real object store; the clock is an argument."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.errors import BadInput
from infra.lease import Lease, LeaseHeld, LeaseLost, check_token, read_lease

pytestmark = pytest.mark.stack

NOW = 1_800_000_000.0


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex}"


def test_a_free_lease_is_taken_with_token_1(store, name):
    lease = Lease.acquire(store, name, "one", 10, NOW)
    lease.check(NOW + 9.9)
    assert lease.token == 1
    assert read_lease(store, name) == lease.record


def test_a_held_lease_names_its_owner_and_end(store, name):
    Lease.acquire(store, name, "one", 10, NOW)
    with pytest.raises(LeaseHeld, match="held by one") as caught:
        Lease.acquire(store, name, "two", 10, NOW + 9.9)
    assert (caught.value.owner, caught.value.expires_s) == ("one", NOW + 10)


def test_OR5_an_expired_lease_goes_over_with_a_higher_token_and_fences_the_old_owner(store, name):
    old = Lease.acquire(store, name, "one", 10, NOW)
    new = Lease.acquire(store, name, "two", 10, NOW + 10)
    assert (old.token, new.token) == (1, 2)
    # The old owner comes back, with a clock that even says its lease has not ended.
    for revived in (
        lambda: old.renew(NOW + 5),
        lambda: old.check(NOW + 5),
        lambda: old.renew(NOW + 11),
        lambda: check_token(store, name, 1, NOW + 11),
    ):
        with pytest.raises(LeaseLost):
            revived()
    assert old.release() is False
    new.check(NOW + 11)


def test_an_expired_lease_is_not_revived_by_its_owner(store, name):
    lease = Lease.acquire(store, name, "one", 10, NOW)
    with pytest.raises(LeaseLost, match="expired"):
        lease.renew(NOW + 10)
    with pytest.raises(LeaseLost, match="expired"):
        lease.check(NOW + 12)


def test_a_renewed_lease_lasts_longer(store, name):
    lease = Lease.acquire(store, name, "one", 10, NOW)
    lease.renew(NOW + 8)
    lease.renew(NOW + 16)
    lease.check(NOW + 25)
    with pytest.raises(LeaseHeld):
        Lease.acquire(store, name, "two", 10, NOW + 25)


def test_a_released_lease_is_free_at_once(store, name):
    lease = Lease.acquire(store, name, "one", 10, NOW)
    assert lease.release() is True
    with pytest.raises(LeaseLost, match="given back"):
        lease.check(NOW + 1)
    assert Lease.acquire(store, name, "two", 10, NOW + 1).token == 2
    assert lease.release() is False


def test_R7_a_later_process_of_the_same_work_goes_on_with_the_lease(store, name):
    first = Lease.acquire(store, name, "rollout", 10, NOW)
    tick = Lease.resume(store, name, first.token, 10, NOW + 5)
    tick.renew(NOW + 6)
    first.renew(NOW + 7)  # the same token: no rival
    with pytest.raises(LeaseLost):
        Lease.resume(store, name, 7, 10, NOW + 8)
    with pytest.raises(LeaseLost, match="does not exist"):
        Lease.resume(store, f"{name}-other", 1, 10, NOW)


def test_OR5_one_of_two_that_start_at_once_gets_the_lease(store, name):
    def attempt(owner: str) -> int | None:
        try:
            return Lease.acquire(store, name, owner, 60, NOW).token
        except LeaseHeld:
            return None

    for now_free in range(2):  # never taken, then expired
        with ThreadPoolExecutor(4) as pool:
            tokens = list(pool.map(attempt, ["a", "b", "c", "d"]))
        assert [token for token in tokens if token is not None] == [now_free + 1]
        held = read_lease(store, name)
        assert held is not None
        Lease.resume(store, name, held.token, 60, NOW).release()


def test_a_time_to_live_of_zero_is_refused(store, name):
    with pytest.raises(BadInput, match="not positive"):
        Lease.acquire(store, name, "one", 0, NOW)


def test_a_kept_lease_is_written_only_when_a_quarter_of_its_time_is_over(store, name):
    lease = Lease.acquire(store, name, "one", 10, NOW)
    before = lease.record
    lease.keep(NOW + 2)
    assert lease.record == before
    lease.keep(NOW + 3)
    assert lease.record.expires_s == NOW + 13
    with pytest.raises(LeaseLost, match="expired"):
        lease.keep(NOW + 13)
