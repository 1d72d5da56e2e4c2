"""A lease with a fencing token, kept in the object store by compare and swap.

Whoever holds it renews it before it expires. An expired lease is taken over with a higher token; the old
holder, should it come back, finds itself fenced off. The clock is an argument: seconds since the epoch, by
the caller's clock.
"""

from __future__ import annotations

import secrets

from pydantic import BaseModel, ConfigDict, Field

from infra.errors import BadInput, RatchetError
from infra.store import ObjectMissing, ObjectStore, record_bytes


class LeaseHeld(RatchetError):
    """Somebody else holds the lease: `owner`, until `expires_s` (seconds since the epoch)."""

    def __init__(self, name: str, owner: str, expires_s: float) -> None:
        super().__init__(
            f"lease {name} is held by {owner} until {expires_s:.1f} (seconds since the epoch)",
            remedy="Wait for its end; a dead holder's lease expires by itself",
        )
        self.owner = owner
        self.expires_s = expires_s


class LeaseLost(RatchetError):
    """The lease is no longer this holder's: it expired, was taken over or was given back. Stop at once."""


class LeaseRecord(BaseModel):
    """The lease as stored under `leases/<name>.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    owner: str
    token: int = Field(ge=1, description="grows by one with every new holder")
    acquired_s: float = Field(description="seconds since the epoch")
    expires_s: float = Field(description="seconds since the epoch")
    released: bool = False
    nonce: str = Field(description="unique per version: tells a lost answer from a lost race")

    def live(self, now: float) -> bool:
        """Whether somebody holds it at `now` (seconds since the epoch)."""
        return not self.released and now < self.expires_s


def lease_key(name: str) -> str:
    """The object's key."""
    return f"leases/{name}.json"


def read_lease(store: ObjectStore, name: str) -> LeaseRecord | None:
    """The lease as it stands; None when it was never taken."""
    try:
        return store.get_record(lease_key(name), LeaseRecord)
    except ObjectMissing:
        return None


def check_token(store: ObjectStore, name: str, token: int, now: float) -> LeaseRecord:
    """The stored lease, if `token` is its token and it has not ended at `now`.

    Raises:
        LeaseLost: it was taken over, given back or has expired.
    """
    return _require(read_lease(store, name), name, token, now)


def _require(record: LeaseRecord | None, name: str, token: int, now: float) -> LeaseRecord:
    if record is None:
        raise LeaseLost(f"lease {name} does not exist; token {token} is void")
    if record.token != token:
        raise LeaseLost(f"lease {name} belongs to {record.owner} (token {record.token}, this one is {token})")
    if record.released:
        raise LeaseLost(f"lease {name} (token {token}) was given back")
    if now >= record.expires_s:
        raise LeaseLost(f"lease {name} (token {token}) expired {now - record.expires_s:.1f} s ago")
    return record


class Lease:
    """A lease that this process holds. Made by `acquire` or `resume`."""

    def __init__(self, store: ObjectStore, record: LeaseRecord, etag: str, ttl_s: float) -> None:
        self._store = store
        self._etag = etag
        self._ttl_s = ttl_s
        self.record = record

    @property
    def token(self) -> int:
        """The fencing token; write it beside every effect."""
        return self.record.token

    @classmethod
    def acquire(cls, store: ObjectStore, name: str, owner: str, ttl_s: float, now: float) -> Lease:
        """Take a lease that is free, given back or expired. A contended race may take 5 s.

        Args:
            store: where it is kept.
            name: what is leased, for example `rollout/<target>`.
            owner: who takes it, for people.
            ttl_s: seconds until it expires, unless renewed.
            now: seconds since the epoch.

        Raises:
            LeaseHeld: somebody holds it, or was faster.
        """
        if ttl_s <= 0:
            raise BadInput(f"lease {name}: a time to live of {ttl_s:g} s is not positive")
        key = lease_key(name)
        for _ in range(3):
            try:
                old, etag = store.get_record_with_etag(key, LeaseRecord)
            except ObjectMissing:
                record = _version(name, owner, 1, acquired_s=now, expires_s=now + ttl_s)
                if store.put_once(key, record_bytes(record)):
                    return cls(store, record, store.get_with_etag(key)[1], ttl_s)
                continue
            if old.live(now):
                raise LeaseHeld(name, old.owner, old.expires_s)
            record = _version(name, owner, old.token + 1, acquired_s=now, expires_s=now + ttl_s)
            new_etag = store.put_if_match(key, record_bytes(record), etag)
            if new_etag is not None:
                return cls(store, record, new_etag, ttl_s)
        current = store.get_record(key, LeaseRecord)
        raise LeaseHeld(name, current.owner, current.expires_s)

    @classmethod
    def resume(cls, store: ObjectStore, name: str, token: int, ttl_s: float, now: float) -> Lease:
        """Go on with a lease that an earlier process of the same work took (a tick after a tick).

        Raises:
            LeaseLost: `token` no longer holds it.
        """
        try:
            record, etag = store.get_record_with_etag(lease_key(name), LeaseRecord)
        except ObjectMissing:
            raise LeaseLost(f"lease {name} does not exist; token {token} is void") from None
        return cls(store, _require(record, name, token, now), etag, ttl_s)

    def renew(self, now: float) -> None:
        """Extend the lease to `now` + its time to live.

        Raises:
            LeaseLost: it was taken over, given back or has expired; an expired one is not revived, since
                whoever watches it may have acted on its end.
        """
        old = self.record
        if now >= old.expires_s or old.released:
            check_token(self._store, old.name, old.token, now)
        record = _version(old.name, old.owner, old.token, acquired_s=old.acquired_s, expires_s=now + self._ttl_s)
        self._swap(record, now)

    def keep(self, now: float) -> None:
        """`renew` once a quarter of its time is over: cheap enough for every turn of a waiting loop.

        Raises:
            LeaseLost: as `renew`.
        """
        if self.record.expires_s - now < 0.75 * self._ttl_s:
            self.renew(now)

    def check(self, now: float) -> None:
        """Read the store and raise unless this lease is still held at `now`.

        Raises:
            LeaseLost: it is not.
        """
        check_token(self._store, self.record.name, self.token, now)

    def release(self) -> bool:
        """Give it back; False when it was no longer this holder's (which is no error)."""
        old = self.record
        record = _version(
            old.name, old.owner, old.token, acquired_s=old.acquired_s, expires_s=old.expires_s, released=True
        )
        try:
            self._swap(record, old.acquired_s)
        except LeaseLost:
            return False
        return True

    def _swap(self, record: LeaseRecord, now: float) -> None:
        etag = self._store.put_if_match(lease_key(record.name), record_bytes(record), self._etag)
        if etag is None:
            # Another process of the same work may have renewed it meanwhile: only the token decides.
            stored, current = self._store.get_record_with_etag(lease_key(record.name), LeaseRecord)
            _require(stored, record.name, record.token, now)
            etag = self._store.put_if_match(lease_key(record.name), record_bytes(record), current)
        if etag is None:
            raise LeaseLost(f"lease {record.name} (token {record.token}) changed hands while it was being written")
        self.record, self._etag = record, etag


def _version(
    name: str, owner: str, token: int, *, acquired_s: float, expires_s: float, released: bool = False
) -> LeaseRecord:
    return LeaseRecord(
        name=name,
        owner=owner,
        token=token,
        acquired_s=acquired_s,
        expires_s=expires_s,
        released=released,
        nonce=secrets.token_hex(8),
    )
