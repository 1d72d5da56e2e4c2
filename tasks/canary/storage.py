"""What a rollout keeps in S3, and the lease that says who may act on it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from infra.errors import BadInput
from infra.lease import Lease, LeaseLost
from infra.store import ObjectMissing, ObjectStore
from infra.traffic.switch import SwitchError
from tasks.baseline.records import BaselineReport
from tasks.canary import rollout as machine
from tasks.canary.records import Approval, RolloutPlan, RolloutState, Verification
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import Criteria, Target


def rollout_folder(target: Target, rollout_id: str) -> str:
    """Where a rollout lies in S3."""
    return f"rollouts/{target.key}/{rollout_id}"


def lease_name(target: Target) -> str:
    """The lease of a target's rollout; the guardian watches it."""
    return f"rollout/{target.key}"


def plan_under(store: ObjectStore, key: str) -> RolloutPlan:
    """The plan under an S3 key.

    Raises:
        BadInput: there is none.
    """
    try:
        return store.get_record(key, RolloutPlan)
    except ObjectMissing:
        raise BadInput(f"no plan at {key}", remedy="`ratchet ledger list` shows plans that wait") from None


def rollouts_of(store: ObjectStore, target: Target) -> Iterator[RolloutState]:
    """The state of every rollout of a target, whatever became of it."""
    for found in store.list(f"rollouts/{target.key}/"):
        if found.key.endswith("/state.json"):
            yield store.get_record(found.key, RolloutState)


class Rollout:
    """One rollout's state in S3, written by compare-and-swap only."""

    def __init__(self, store: ObjectStore, plan_key: str) -> None:
        self.store = store
        self.plan = plan_under(store, plan_key)
        self.folder = rollout_folder(self.plan.target, self.plan.plan_id)
        self.key = f"{self.folder}/state.json"
        self.etag = ""

    def load(self, now_s: float) -> RolloutState:
        """The state, made where there is none."""
        if not self.store.exists(self.key):
            self.store.put_record_once(self.key, machine.prepared(self.plan.plan_id, self.plan, now_s, token=0))
        state, self.etag = self.store.get_record_with_etag(self.key, RolloutState)
        return state

    def others_under_way(self) -> tuple[RolloutState, ...]:
        """Rollouts of the same target that have begun and not ended, one whose rollback failed among them."""
        every = rollouts_of(self.store, self.plan.target)
        return tuple(s for s in every if s.rollout_id != self.plan.plan_id and machine.under_way(s))

    def verification(self) -> Verification | None:
        """Production's readings after the promotion, once they are stored."""
        key = f"{self.folder}/verification.json"
        return self.store.get_record(key, Verification) if self.store.exists(key) else None

    def keep_verification(self, measured: Verification) -> Verification:
        """Store them; the first ones stay, and are returned."""
        key = f"{self.folder}/verification.json"
        self.store.put_record_once(key, measured)
        return self.store.get_record(key, Verification)

    def unchanged(self) -> bool:
        """Whether the state in S3 is still the one that this process read or wrote last."""
        return self.store.get_with_etag(self.key)[1] == self.etag

    def save(self, state: RolloutState) -> RolloutState:
        """Write a new version.

        Raises:
            SwitchError: someone else wrote meanwhile; this process must not act any more.
        """
        etag = self.store.put_if_match(self.key, state.model_dump_json(indent=1).encode(), self.etag)
        if etag is None:
            raise SwitchError(
                f"rollout {state.rollout_id[:12]} was written by another process",
                remedy="This one stops; the other goes on",
            )
        self.etag = etag
        return state


def approval_of(store: ObjectStore, plan: RolloutPlan) -> Approval | None:
    key = f"approvals/{plan.content_hash()}.json"
    return store.get_record(key, Approval) if store.exists(key) else None


def criteria_of(store: ObjectStore, plan: RolloutPlan) -> Criteria:
    return store.get_record(f"campaigns/{plan.campaign}/criteria.json", CriteriaPin).criteria


def baseline_of(store: ObjectStore, plan: RolloutPlan) -> BaselineReport:
    return store.get_record(f"campaigns/{plan.campaign}/baseline.json", BaselineReport)


def take_lease(store: ObjectStore, state: RolloutState, target: Target, ttl_s: float) -> Lease:
    """Go on under the token that wrote the state, or take an expired lease over with a higher one.

    Raises:
        LeaseHeld: another process holds it under another token.
    """
    name = lease_name(target)
    try:
        return Lease.resume(store, name, state.token, ttl_s, time.time())
    except LeaseLost:
        return Lease.acquire(store, name, owner=f"{socket.gethostname()}:{os.getpid()}", ttl_s=ttl_s, now=time.time())
